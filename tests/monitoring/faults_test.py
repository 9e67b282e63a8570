"""Alerts of the shipped rules fire by real faults of a real daemon, and those that tell of a state clear when it is over.

Their waiting times are taken out; what needs a window of minutes to clear does so in promtool's unit tests.
"""

import os
import signal
import socket
import subprocess
import sys
import time

import numpy
import pytest
from conftest import BUILD, ROOT, Daemon, Prometheus

sys.path.insert(0, str(ROOT / "client/python"))
DISK_BYTES = 96 << 20


def firing(prometheus):
    return {series["metric"]["alertname"] for series in prometheus.query('ALERTS{alertstate="firing"}')}


def wait_for(condition, seconds=15):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def wait_until_firing(prometheus, *names):
    wait_for(lambda: set(names) <= firing(prometheus))


def wait_until_clear(prometheus, *names):
    wait_for(lambda: not set(names) & firing(prometheus))


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory):
    """A file system of its own, to fill."""
    if os.geteuid() != 0:
        pytest.skip("not root: no file system to fill")
    folder = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "kvtier-test", folder],
                             capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip("no right to mount: no file system to fill")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture(scope="module")
def daemon(small_disk, tmp_path_factory):
    """With the small disk below its cold tier, and plain calls for its files."""
    started = Daemon(tmp_path_factory.mktemp("daemon"), cold=small_disk, server='io = "sync"')
    yield started
    started.stop()


@pytest.fixture(scope="module")
def prometheus(daemon, tmp_path_factory):
    started = Prometheus(tmp_path_factory.mktemp("prometheus"), daemon, waiting=False)
    subprocess.run(daemon.load_arguments("--requests", "500"), check=True, timeout=120)
    try:
        started.wait_for_rates(">= 0")  # the load may be over
        yield started
    finally:
        started.stop()


def test_a_daemon_without_faults_raises_no_alert_but_that_of_its_setting(prometheus):
    wait_until_firing(prometheus, "KvtierSlowFileIo")
    assert firing(prometheus) == {"KvtierSlowFileIo"}


def test_a_daemon_that_does_not_answer(prometheus, daemon):
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        wait_until_firing(prometheus, "KvtierDown")
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    wait_until_clear(prometheus, "KvtierDown")


def test_clients_that_may_not_and_leases_that_nobody_releases(prometheus, daemon):
    import kvtier

    with kvtier.Client(str(daemon.socket), timeout_ms=5000) as client:
        model = client.register_model(kvtier.ModelSpec("load", layers=4, kv_heads=2, k_dim=64, v_dim=64))
        kv, blocks = numpy.zeros((4, 2, 2, 128, 64), numpy.float16), model.keys(range(128))
        model.put(blocks, kvtier.View(kv, "lchtd")).wait(5000)
        # As many as a session may hold at once, or more where some have expired meanwhile.
        kept = [lease for lease in (model.acquire(blocks, ttl_ms=50) for _ in range(100)) if lease is not None]
        assert len(kept) >= 10
        for _ in range(10):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                stranger.connect(f"{daemon.socket}.session")
                stranger.send(b"who may not")
                stranger.settimeout(5)
                while stranger.recv(1000):
                    pass
        wait_until_firing(prometheus, "KvtierSessionsRefused", "KvtierLeasesExpire")


def test_a_block_that_is_not_what_it_was(prometheus, daemon, small_disk):
    segments = sorted(small_disk.rglob("*.seg*"), key=lambda path: path.stat().st_mtime)
    assert segments
    with open(segments[0], "r+b") as segment:
        segment.seek(256 << 10)
        segment.write(os.urandom(1 << 20))
    subprocess.run([BUILD / "bin/kvtierctl", "--socket", daemon.socket, "verify", "cold"], timeout=60, capture_output=True)
    wait_until_firing(prometheus, "KvtierCorruptBlocks")


def test_a_disk_that_is_full_and_has_room_again(prometheus, daemon, small_disk):
    hog = small_disk / "hog"
    with open(hog, "wb") as file:
        try:
            while True:
                file.write(bytes(1 << 20))
                file.flush()
        except OSError:
            pass
    load = subprocess.Popen(daemon.load_arguments("--seconds", "60", "--seed", "7"), stdout=subprocess.DEVNULL)
    try:
        wait_until_firing(prometheus, "KvtierTierShedsWrites", "KvtierIoErrors")
        hog.unlink()
        wait_until_clear(prometheus, "KvtierTierShedsWrites")
    finally:
        load.terminate()
        load.wait(timeout=20)
        hog.unlink(missing_ok=True)
