"""A daemon under load, small enough that its ladder overflows, and a Prometheus that scrapes it."""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
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

    def __init__(self, folder, cold=None, server=""):
        """`cold`: the folder of its cold tier; `server`: more keys of that table."""
        self.port = free_port()
        self.socket = folder / "d.sock"
        cold = cold or folder / "cold"
        cold.mkdir(exist_ok=True)
        (folder / "kvtier.toml").write_text(
            f'[server]\nsocket = "{self.socket}"\n{server}\n[tier.hot]\nmedium = "host"\ncapacity = "16MiB"\n'
            f'[tier.warm]\ncapacity = "16MiB"\n'
            f'[[tier.cold]]\nmedium = "nvme"\npath = "{cold}"\ncapacity = "64MiB"\nsegment = "4MiB"\n'
            f'[metrics]\nlisten = "127.0.0.1:{self.port}"\n')
        super().__init__([BUILD / "bin/kvtierd", "--config", folder / "kvtier.toml"], folder / "daemon.log")
        wait_until("kvtierd is ready", lambda: get(self.url("readyz")) == "ok\n", self.process, self.log)

    def url(self, page):
        return f"http://127.0.0.1:{self.port}/{page}"

    def metrics(self):
        return get(self.url("metrics"))

    def load_arguments(self, *options):
        return [sys.executable, "-B", ROOT / "deploy/observe/load.py", self.socket, *options]


class Prometheus(Process):
    """Of the shipped configuration, but that it scrapes every second and finds the daemon at its port; and, where the test
    does not care to wait, that alerts do not wait either."""

    def __init__(self, folder, daemon, waiting=True):
        shutil.copytree(ROOT / "monitoring", folder / "monitoring")
        config = folder / "monitoring/prometheus.yml"
        text = config.read_text()
        for old, new in (("127.0.0.1:9464", f"127.0.0.1:{daemon.port}"), ("scrape_interval: 15s", "scrape_interval: 1s"),
                         ("evaluation_interval: 15s", "evaluation_interval: 1s"), ("scrape_timeout: 5s", "scrape_timeout: 1s")):
            assert text.count(old) == 1
            text = text.replace(old, new)
        config.write_text(text)
        if not waiting:
            alerts = folder / "monitoring/rules/alerts.yml"
            alerts.write_text(re.sub(r"^ +for: .*\n", "", alerts.read_text(), flags=re.MULTILINE))
        self.url = f"http://127.0.0.1:{free_port()}"
        super().__init__(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb",
                          f"--web.listen-address={self.url.removeprefix('http://')}",
                          f"--web.console.templates={folder}/monitoring/consoles",
                          f"--web.console.libraries={folder}/monitoring/consoles/lib"], folder / "prometheus.log")

    def wait_for_rates(self, comparison="> 0"):
        # A page asks for whole seconds: what it draws must have been there at the last one.
        wait_until("a rate over two scrapes", lambda: self.query(f"rate(kvtier_lookups_total[1m] offset 1s) {comparison}"),
                   self.process, self.log)

    def query(self, expression):
        answer = json.loads(get(f"{self.url}/api/v1/query?" + urllib.parse.urlencode({"query": expression})))
        assert answer["status"] == "success", answer
        return answer["data"]["result"]

    def console(self, page):
        return get(f"{self.url}/consoles/{page}")


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
