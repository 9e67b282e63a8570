"""Installs the build into an empty folder and uses it from there: pkg-config, CMake, the example in C and a daemon."""

import os
import pathlib
import shutil
import subprocess
import time

import pytest

from programs import BUILD, ROOT, run

EXAMPLE = ROOT / "client/examples/store_and_fetch.c"


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    installed = tmp_path_factory.mktemp("installed")
    run("cmake", "--install", BUILD, "--prefix", installed)
    moved = installed.with_name("moved")  # nothing may depend on where it was installed
    shutil.move(installed, moved)
    return moved


@pytest.fixture(scope="module")
def libdir(prefix):
    (library,) = prefix.rglob("libkvtier.so")
    return library.parent


@pytest.fixture(scope="module")
def socket(prefix, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    config = folder / "kvtier.toml"
    config.write_text(f'[server]\nsocket = "{folder}/d.sock"\n[tier.hot]\nmedium = "host"\ncapacity = "64MiB"\n'
                      '[metrics]\nlisten = "off"\n')
    with open(folder / "log", "w") as log:
        daemon = subprocess.Popen([prefix / "bin/kvtierd", "--config", config], stdout=log, stderr=log)
    for _ in range(200):
        if (folder / "d.sock").exists():
            break
        assert daemon.poll() is None, (folder / "log").read_text()
        time.sleep(0.05)
    yield str(folder / "d.sock")
    daemon.terminate()
    assert daemon.wait(timeout=20) == 0


def check_example(program, libdir, socket, name):
    # Its blocks are those of the model's name: the second run finds what the first has stored.
    env = {**os.environ, "LD_LIBRARY_PATH": str(libdir), "KVTIER_SOCKET": socket}
    said = run(program, env=env)
    assert "300 tokens fetched, error of K 0.0000" in said
    assert "300 of 300 tokens are there" in run(program, env=env), name


def test_pkg_config(prefix, libdir, socket, tmp_path):
    env = {**os.environ, "PKG_CONFIG_PATH": str(libdir / "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "kvtier", env=env).split()
    assert any(pathlib.Path(flag[2:]).resolve() == (prefix / "include").resolve() for flag in flags if flag.startswith("-I"))
    program = tmp_path / "example"
    run("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", EXAMPLE, "-o", program, *flags)
    check_example(program, libdir, socket, "pkg-config")


def test_find_package(prefix, libdir, socket, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(engine LANGUAGES C)\nfind_package(kvtier 0.1 REQUIRED)\n"
        f"add_executable(example {EXAMPLE})\ntarget_link_libraries(example PRIVATE kvtier::kvtier)\n")
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path / "build")
    check_example(tmp_path / "build/example", libdir, socket, "find_package")


def test_the_library_exports_the_c_functions_under_their_version_and_nothing_else(libdir):
    library = libdir / "libkvtier.so"
    assert (libdir / "libkvtier.so.1").exists()
    symbols = [line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()]
    functions = [name for name in symbols if name != "KVTIER_1"]
    assert functions and all(name.startswith("kvtier_") and name.endswith("@@KVTIER_1") for name in functions), symbols


def test_the_programs_run(prefix):
    assert run(prefix / "bin/kvtierctl", "--version").strip()
    assert run(prefix / "bin/kvtierd", "--version").strip()
    assert "ok" in run(prefix / "bin/kvtierctl", "config", "check", prefix / "share/kvtier/kvtier.toml")


def test_shells_and_man_find_what_is_theirs(prefix):
    for shell, place in {"bash": "bash-completion/completions/kvtierctl", "zsh": "zsh/site-functions/_kvtierctl",
                         "fish": "fish/vendor_completions.d/kvtierctl.fish"}.items():
        assert (prefix / "share" / place).read_text() == run(prefix / "bin/kvtierctl", "completion", shell)
    for section, page in ((1, "kvtierctl"), (5, "kvtier.toml"), (8, "kvtierd")):
        assert page in run("man", "--manpath", prefix / "share/man", section, page)
