"""The adapters as their wheel gives them, and a daemon. What an engine's package is needed for runs by tests/adapters/run.sh."""

import contextlib
import importlib.util
import os
import pathlib
import signal
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("kvtier_python_conftest", ROOT / "tests/python/conftest.py")
_python = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_python)
BUILD, Daemon, installed_wheel, daemon = _python.BUILD, _python.Daemon, _python.installed_wheel, _python.daemon

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1", LMCACHE_TRACK_USAGE="false")


@contextlib.contextmanager
def suspended(daemon):
    """Begins when the daemon has stopped, and lets it go on at the end."""
    daemon.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, daemon.process.pid, os.WSTOPPED)
    try:
        yield
    finally:
        daemon.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def leaves_no_session(daemon):
    """What is done in it ends the only session of an adapter with the daemon."""
    import kvtier

    with kvtier.Client(daemon.socket, timeout_ms=20000) as client:
        assert client.stats().sessions == 2
        yield
        end = time.monotonic() + 20
        while client.stats().sessions > 1 and time.monotonic() < end:
            time.sleep(0.01)
        assert client.stats().sessions == 1


def needs(package):
    """Skips a module's tests where the engine is not there, and says how they run."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; tests/adapters/run.sh fetches it", allow_module_level=True)


@pytest.fixture(scope="session", autouse=True)
def installed_adapters(installed_wheel, tmp_path_factory):
    _python.install_wheel(tmp_path_factory.mktemp("adapters"), ROOT / "client/adapters", "kvtier_adapters")


@pytest.fixture(scope="module")
def module_daemon(tmp_path_factory):
    started = Daemon(tmp_path_factory.mktemp("daemon"))
    yield started
    started.stop()
