"""deploy/observe.sh shows a loaded daemon in a Prometheus, and leaves nothing behind however it ends."""

import os
import pathlib
import re
import signal
import subprocess
import time

from conftest import ROOT, get

ADDRESSES = ("overview", "a tier", "queries", "alerts", "metrics")


def start(folder):
    return subprocess.Popen([ROOT / "deploy/observe.sh", "--no-build", "--seconds", "60"], stdout=subprocess.PIPE, text=True,
                            env={**os.environ, "TMPDIR": str(folder)}, start_new_session=True)


def read_addresses(process):
    addresses = {}
    while line := process.stdout.readline():
        name = next((name for name in ADDRESSES if line.startswith(name + " ")), None)
        if name:
            addresses[name] = line.split()[-1]
        if line.startswith("numbers"):
            return addresses
    raise AssertionError(f"it ended with {process.wait()}")


def processes_of(folder):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append((entry / "cmdline").read_bytes())
        except OSError:
            pass
    return found


def test_it_shows_a_loaded_daemon_and_cleans_up(tmp_path):
    process = start(tmp_path)
    try:
        addresses = read_addresses(process)
        assert addresses.keys() == set(ADDRESSES)
        for address in addresses.values():
            assert get(address)
        end = time.monotonic() + 20
        # The hit rate is there as soon as a load has been scraped twice.
        while not re.search(r'<td class="number">[\d.]+%</td>', get(addresses["overview"])):
            assert time.monotonic() < end
            time.sleep(0.2)
        assert len(processes_of(tmp_path)) == 3  # daemon, load, Prometheus
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.close()
        assert process.wait(timeout=20) == 0
    assert processes_of(tmp_path) == [] and list(tmp_path.iterdir()) == []


def test_a_daemon_that_ends_is_told(tmp_path):
    process = start(tmp_path)
    try:
        read_addresses(process)
        (daemon,) = (int(entry.name) for entry in pathlib.Path("/proc").iterdir()
                     if entry.name.isdigit() and is_daemon(entry, tmp_path))
        os.kill(daemon, signal.SIGKILL)
        assert process.wait(timeout=20) == 1
    finally:
        process.stdout.close()
        if process.poll() is None:
            process.kill()
    assert processes_of(tmp_path) == [] and list(tmp_path.iterdir()) == []


def is_daemon(entry, folder):
    try:
        command = (entry / "cmdline").read_bytes()
    except OSError:
        return False
    return command.split(b"\0")[0].endswith(b"kvtierd") and str(folder).encode() in command
