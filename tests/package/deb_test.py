"""The Debian package that CPack makes: what is in it, what it asks for, and that its programs run from it."""

import os
import re
import subprocess

import pytest

from programs import BUILD, ROOT, run

SCRIPTS = ("postinst", "prerm", "postrm")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Unpacked, with its control files in DEBIAN. Fast: how small it is does not matter here."""
    folder = tmp_path_factory.mktemp("package")
    run("cpack", "--config", BUILD / "CPackConfig.cmake", "-G", "DEB", "-B", folder, "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=none")
    (made,) = folder.glob("kvtier_*_*.deb")
    run("dpkg-deb", "--raw-extract", made, folder / "tree")
    return folder / "tree"


def test_it_holds_all_that_an_operator_needs_below_usr(package):
    assert {path.name for path in package.iterdir()} == {"DEBIAN", "usr"}
    held = {str(path.relative_to(package / "usr")) for path in (package / "usr").rglob("*") if path.is_file()}
    assert {"bin/kvtierd", "bin/kvtierctl", "lib/systemd/system/kvtierd.service", "lib/sysusers.d/kvtier.conf",
            "share/kvtier/kvtier.toml", "share/kvtier/seccomp-kvtier.json", "share/kvtier/monitoring/rules/alerts.yml",
            "share/kvtier/monitoring/RUNBOOK.md", "include/kvtier/kvtier.h", "share/bash-completion/completions/kvtierctl",
            "share/zsh/vendor-completions/_kvtierctl", "share/fish/vendor_completions.d/kvtierctl.fish",
            "share/man/man1/kvtierctl.1", "share/man/man5/kvtier.toml.5", "share/man/man8/kvtierd.8"} <= held
    assert any(re.fullmatch(r"lib/.*libkvtier\.so\.1\.\d+\.\d+", name) for name in held)
    assert not [name for name in held if re.search(r"monitoring/.*\.(h|cc)$|CMakeLists|test", name)]


def test_it_depends_on_the_libraries_that_its_programs_need(package):
    control = (package / "DEBIAN/control").read_text()
    (depends,) = re.findall(r"^Depends: (.*)$", control, re.MULTILINE)
    for library in ("libc6", "libgrpc++1.51", "liburing2", "adduser"):
        assert re.search(rf"(^|, ){re.escape(library)}\b", depends), depends
    assert not re.search(r"-dev\b", depends)


def test_its_scripts_are_sound_and_speak_of_what_is_in_it(package):
    for script in SCRIPTS:
        path = package / "DEBIAN" / script
        assert os.access(path, os.X_OK)
        run("shellcheck", "--shell=sh", path)
    assert "cp /usr/share/kvtier/kvtier.toml" in (package / "DEBIAN/postinst").read_text()
    unit = (package / "usr/lib/systemd/system/kvtierd.service").read_text()
    assert "ExecStart=/usr/bin/kvtierd --config /etc/kvtier/kvtier.toml" in unit


@pytest.mark.parametrize("failing", ["", "daemon-reload", "try-restart"])
def test_an_upgrade_ends_well_whatever_systemd_says(package, tmp_path, failing):
    etc, systemd, bin_folder = tmp_path / "etc", tmp_path / "systemd", tmp_path / "bin"
    for folder in (etc, systemd, bin_folder):
        folder.mkdir()
    (etc / "kvtier.toml").write_text("# mine")
    for name, script in {"systemctl": f'echo "$1" >>"{tmp_path}/asked"; [ "$1" != "{failing}" ]', "getent": "true"}.items():
        (bin_folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (bin_folder / name).chmod(0o755)
    script = (package / "DEBIAN/postinst").read_text()
    for path, ours in {"/etc/kvtier": etc, "/run/systemd/system": systemd}.items():
        assert path in script
        script = script.replace(path, str(ours))
    done = subprocess.run(["sh", "-c", script, "postinst", "configure", "0.0.1"], capture_output=True, text=True, timeout=20,
                          env={"PATH": f"{bin_folder}:/usr/bin:/bin"})
    assert (done.returncode, (tmp_path / "asked").read_text().split()) == (0, ["daemon-reload", "try-restart"])
    assert ("kvtier" in done.stderr) == bool(failing)
    assert (etc / "kvtier.toml").read_text() == "# mine"


def test_its_programs_run_from_where_they_are(package):
    version = re.search(r"^Version: (.*)$", (package / "DEBIAN/control").read_text(), re.MULTILINE)[1]
    assert run(package / "usr/bin/kvtierd", "--version").strip() == f"kvtierd {version}"
    assert "ok" in run(package / "usr/bin/kvtierd", "--config", package / "usr/share/kvtier/kvtier.toml", "--check")
    for program in ("kvtierd", "kvtierctl"):
        dynamic = run("readelf", "--dynamic", package / "usr/bin" / program)
        assert "RUNPATH" not in dynamic and "RPATH" not in dynamic
