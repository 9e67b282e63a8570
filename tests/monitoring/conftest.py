"""A daemon under load, small enough that its ladder overflows, and a Prometheus that scrapes it."""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("KVTIER_BUILD", ROOT / "build"))
sys.path.insert(0, str(pathlib.Path(__file__).parent))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(url, timeout=5):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read().decode()


def wait_until(what, condition, process, log, seconds=30):
    """Polls; fails with the process' log when it ends or the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"not in {seconds} s: {what}\n{log.read_text()}")


class Process:
    def __init__(self, arguments, log):
        self.log = log
        with open(log, "w") as out:
            self.process = subprocess.Popen([str(argument) for argument in arguments], stdout=out, stderr=out)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


class Daemon(Process):
    tiers = ("hot", "warm", "cold")

    def __init__(self, folder):
        self.port = free_port()
        self.socket = folder / "d.sock"
        (folder / "cold").mkdir()
        (folder / "kvtier.toml").write_text(
            f'[server]\nsocket = "{self.socket}"\n[tier.hot]\nmedium = "host"\ncapacity = "16MiB"\n'
            f'[tier.warm]\ncapacity = "16MiB"\n'
            f'[[tier.cold]]\nmedium = "nvme"\npath = "{folder}/cold"\ncapacity = "64MiB"\nsegment = "4MiB"\n'
            f'[metrics]\nlisten = "127.0.0.1:{self.port}"\n')
        super().__init__([BUILD / "bin/kvtierd", "--config", folder / "kvtier.toml"], folder / "daemon.log")
        wait_until("kvtierd is ready", lambda: get(self.url("readyz")) == "ok\n", self.process, self.log)

    def url(self, page):
        return f"http://127.0.0.1:{self.port}/{page}"

    def metrics(self):
        return get(self.url("metrics"))

    def load_arguments(self, *options):
        return [sys.executable, "-B", ROOT / "deploy/observe/load.py", self.socket, *options]


@pytest.fixture(scope="session", autouse=True)
def library():
    os.environ["KVTIER_LIBRARY"] = str(BUILD / "lib/libkvtier.so.1")


@pytest.fixture(scope="session")
def daemon(tmp_path_factory):
    started = Daemon(tmp_path_factory.mktemp("daemon"))
    yield started
    started.stop()


@pytest.fixture(scope="session")
def loaded_daemon(daemon):
    """Blocks have come to every tier and left from the last."""
    subprocess.run(daemon.load_arguments("--requests", "600"), check=True, timeout=120)
    return daemon
