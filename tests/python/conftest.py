"""A wheel of the package, installed into an empty folder, and a daemon to talk to."""

import importlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("KVTIER_BUILD", ROOT / "build"))
os.environ["KVTIER_LIBRARY"] = str(BUILD / "lib/libkvtier.so.1")


def install_wheel(folder, source, package):
    """Builds the wheel of `source` and makes it importable. From a copy, since the build backend writes beside its sources; without
    network: pip and the backend are Debian's, also where PYTHONPATH has the packages of engines."""
    shutil.copytree(source, folder / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*pip, "wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", folder, folder / "source"],
                   check=True, timeout=120, env=alone)
    (wheel,) = folder.glob(f"{package}-*-py3-none-any.whl")
    subprocess.run([*pip, "install", "--no-index", "--no-deps", "--target", folder / "site", wheel], check=True, timeout=120,
                   env=alone)
    sys.path.insert(0, str(folder / "site"))
    assert pathlib.Path(importlib.import_module(package).__file__).parent == folder / "site" / package


@pytest.fixture(scope="session", autouse=True)
def installed_wheel(tmp_path_factory):
    install_wheel(tmp_path_factory.mktemp("wheel"), ROOT / "client/python", "kvtier")


class Daemon:
    def __init__(self, folder):
        self.folder, self.process = folder, None
        self.socket = str(folder / "d.sock")
        (folder / "kvtier.toml").write_text(
            f'[server]\nsocket = "{self.socket}"\n[tier.hot]\nmedium = "host"\ncapacity = "32MiB"\n'
            f'[tier.warm]\ncapacity = "32MiB"\n'
            f'[[tier.cold]]\nmedium = "nvme"\npath = "{folder}/cold"\ncapacity = "1GiB"\n[metrics]\nlisten = "off"\n')
        (folder / "cold").mkdir()
        self.start()

    def start(self):
        log = open(self.folder / "log", "a")
        self.process = subprocess.Popen([BUILD / "bin/kvtierd", "--config", self.folder / "kvtier.toml"], stdout=log,
                                        stderr=log)
        import kvtier

        for _ in range(400):
            assert self.process.poll() is None, (self.folder / "log").read_text()
            try:
                kvtier.Client(self.socket).close()
                return
            except kvtier.Error:
                time.sleep(0.05)
        raise AssertionError((self.folder / "log").read_text())

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=20)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(timeout=30) == 0


@pytest.fixture
def daemon(tmp_path):
    started = Daemon(tmp_path)
    yield started
    started.stop()
