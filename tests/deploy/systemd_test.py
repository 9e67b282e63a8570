"""The unit is one that systemd takes and rates well; the daemon lives under its system-call filter and speaks to it."""

import json
import re
import socket
import subprocess
import time

import pytest
from conftest import BUILD, ROOT

UNIT = ROOT / "deploy/systemd/kvtierd.service"
MAX_EXPOSURE = 2.0
EPERM = 1


@pytest.fixture(scope="module")
def unit(tmp_path_factory):
    """With the daemon of the build in place of the installed one."""
    folder = tmp_path_factory.mktemp("unit")
    text = UNIT.read_text()
    assert text.count("/usr/bin/kvtierd") == 2
    (folder / "kvtierd.service").write_text(text.replace("/usr/bin/kvtierd", str(BUILD / "bin/kvtierd")))
    return folder / "kvtierd.service"


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_systemd_takes_the_unit(unit, tmp_path):
    assert run("systemd-analyze", "verify", unit) == (0, "")
    (tmp_path / "kvtierd.service").write_text(unit.read_text().replace("ProtectHome=", "ProtectHomes="))
    assert "ProtectHomes" in run("systemd-analyze", "verify", tmp_path / "kvtierd.service")[1]


def test_the_unit_is_hardened(unit):
    code, said = run("systemd-analyze", "security", "--offline=true", "--no-pager", unit)
    (exposure,) = re.findall(r"Overall exposure level for kvtierd.service: ([\d.]+)", said)
    assert code == 0 and float(exposure) <= MAX_EXPOSURE, said
    code, said = run("systemd-analyze", "security", "--offline=true", f"--threshold={int(MAX_EXPOSURE * 10)}", unit)
    assert code == 0, said


def test_the_sysusers_file_makes_the_user_of_the_unit(tmp_path):
    (tmp_path / "etc").mkdir()
    code, said = run("systemd-sysusers", f"--root={tmp_path}", ROOT / "deploy/systemd/kvtier.sysusers")
    assert code == 0, said
    assert (tmp_path / "etc/passwd").read_text().startswith("kvtier:x:")
    assert "User=kvtier\n" in UNIT.read_text()


def system_calls_of(name):
    """A set of systemd's, with those inside it."""
    code, said = run("systemd-analyze", "syscall-filter", name)
    assert code == 0, said
    found = set()
    for line in said.splitlines()[1:]:
        entry = line.strip()
        if entry.startswith("@"):
            found |= system_calls_of(entry)
        elif entry and not entry.startswith("#"):
            found.add(entry)
    return found


def filter_of_the_unit():
    """What SystemCallFilter's lines come to, one after the other."""
    allowed = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.MULTILINE):
        names = set()
        for entry in line.lstrip("~").split():
            names |= system_calls_of(entry) if entry.startswith("@") else {entry}
        allowed = allowed - names if line.startswith("~") else allowed | names
    return allowed


def test_it_serves_under_the_filter_of_the_unit(sandboxed, tmp_path):
    allowed = filter_of_the_unit()
    assert {"io_uring_setup", "openat"} <= allowed and not {"mount", "ptrace", "chown", "reboot"} & allowed
    # systemd lets itself execute the program and the kernel return from signals, whatever the filter says.
    (tmp_path / "filter.json").write_text(json.dumps({"errno": EPERM, "allow": sorted(allowed | {"execve", "rt_sigreturn"})}))
    daemon = sandboxed(tmp_path / "filter.json")
    daemon.wait_until_ready()
    assert " 0 blocks fetched" not in daemon.load(500)
    assert daemon.metric('kvtier_tier_written_bytes_total{tier="cold",cause="demotion"}') > 0
    assert daemon.metric("kvtier_io_uring_active") == 1
    assert daemon.stop() == 0


def start_with_manager(folder, address):
    (folder / "kvtier.toml").write_text(f'[server]\nsocket = "{folder}/d.sock"\n[tier.hot]\nmedium = "host"\n'
                                        'capacity = "16MiB"\n[metrics]\nlisten = "off"\n')
    with open(folder / "log", "w") as log:
        return subprocess.Popen([BUILD / "bin/kvtierd", "--config", folder / "kvtier.toml"], stdout=log, stderr=log,
                                env={"NOTIFY_SOCKET": address})


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_it_tells_systemd_that_it_is_ready_alive_and_stopping(kind, tmp_path):
    address = str(tmp_path / "notify") if kind == "path" else f"\0{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(20)
        daemon = start_with_manager(tmp_path, address.replace("\0", "@"))
        try:
            assert manager.recv(100) == b"READY=1"
            assert (tmp_path / "d.sock").exists(), "ready before it serves"
            begin = time.monotonic()
            assert [manager.recv(100), manager.recv(100)] == [b"WATCHDOG=1"] * 2
            assert time.monotonic() - begin < 10, "WatchdogSec is 30 s"
        finally:
            daemon.terminate()
        while (said := manager.recv(100)) == b"WATCHDOG=1":
            pass
        assert said == b"STOPPING=1"
        assert daemon.wait(timeout=20) == 0


@pytest.mark.parametrize("address", ["", "@", "relative/nobody", "/" + "x" * 200])
def test_a_manager_that_is_not_there_does_no_harm(address, tmp_path):
    daemon = start_with_manager(tmp_path, address)
    while "kvtierd ready" not in (tmp_path / "log").read_text():
        assert daemon.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.02)
    daemon.terminate()
    assert daemon.wait(timeout=20) == 0
