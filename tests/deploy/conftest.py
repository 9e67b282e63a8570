"""Daemons that run the way a deployment runs them: as nobody, in a sandbox."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("KVTIER_BUILD", ROOT / "build"))
NOBODY = 65534
sys.path.insert(0, str(pathlib.Path(__file__).parent))


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


class Sandboxed:
    """kvtierd with a cold tier under a filter, as nobody where the test is root; its folder is `folder`."""

    def __init__(self, folder, filter_file, port=0, environment=None):
        self.folder, self.log = folder, folder / "log"
        (folder / "cold").mkdir()
        (folder / "kvtier.toml").write_text(
            f'[server]\nsocket = "{folder}/d.sock"\n[tier.hot]\nmedium = "host"\ncapacity = "16MiB"\n'
            f'[tier.warm]\ncapacity = "16MiB"\n'
            f'[[tier.cold]]\nmedium = "nvme"\npath = "{folder}/cold"\ncapacity = "64MiB"\nsegment = "4MiB"\n'
            f'[metrics]\nlisten = "127.0.0.1:{port}"\n')
        # Copies: nobody need not reach the build.
        shutil.copy(BUILD / "bin/kvtierd", folder)
        shutil.copy(ROOT / "tests/deploy/sandbox.py", folder)
        shutil.copy(filter_file, folder / "filter.json")
        user = {}
        if os.geteuid() == 0:
            user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            for path in (folder, *folder.iterdir()):
                os.chown(path, NOBODY, NOBODY)
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-B", folder / "sandbox.py", folder / "filter.json", folder / "kvtierd", "--config",
                 folder / "kvtier.toml"], stdout=log, stderr=log, cwd=folder, env={**os.environ, **(environment or {})}, **user)

    def wait_until_ready(self, seconds=20):
        end = time.monotonic() + seconds
        while "kvtierd ready" not in self.log.read_text():
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)
        (line,) = [line for line in self.log.read_text().splitlines() if "metrics http" in line]
        self.metrics = line.rsplit(" ", 1)[1]

    def load(self, requests):
        """As root: the sockets are nobody's and root's alone."""
        done = subprocess.run([sys.executable, "-B", ROOT / "deploy/observe/load.py", self.folder / "d.sock", "--requests",
                               str(requests)], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "KVTIER_LIBRARY": str(BUILD / "lib/libkvtier.so.1")})
        assert done.returncode == 0, done.stderr
        return done.stdout

    def metric(self, name):
        (line,) = [line for line in get(self.metrics).splitlines() if line.startswith(name + " ")]
        return float(line.rsplit(" ", 1)[1])

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(timeout=30)


@pytest.fixture
def sandboxed():
    """Makes one; it must end well after SIGTERM unless the test has seen to its end."""
    folders, started = [], []

    def make(filter_file, **more):
        folders.append(pathlib.Path(tempfile.mkdtemp()))
        started.append(Sandboxed(folders[-1], filter_file, **more))
        return started[-1]

    yield make
    ends = [daemon.stop() for daemon in started]
    for folder in folders:
        shutil.rmtree(folder)
    assert all(end in (0, 1) for end in ends), ends
