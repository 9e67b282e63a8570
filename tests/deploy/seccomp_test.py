"""kvtierd under the seccomp profile of the Kubernetes manifests: served and stored as nobody, by io_uring."""

import json

from conftest import ROOT

PROFILE = ROOT / "deploy/kubernetes/seccomp-kvtier.json"


def without(names, folder):
    profile = json.loads(PROFILE.read_text())
    for rule in profile["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name not in names]
    changed = folder / "changed.json"
    changed.write_text(json.dumps(profile))
    return changed


def test_it_serves_under_the_profile(sandboxed):
    daemon = sandboxed(PROFILE)
    daemon.wait_until_ready()
    assert daemon.metric("kvtier_io_uring_active") == 1, "said before the first job"
    assert " 0 blocks fetched" not in daemon.load(500)
    assert daemon.metric('kvtier_tier_written_bytes_total{tier="cold",cause="demotion"}') > 0
    assert daemon.metric("kvtier_io_uring_active") == 1
    assert daemon.stop() == 0


def test_without_io_uring_it_serves_by_plain_calls(sandboxed, tmp_path):
    daemon = sandboxed(without({"io_uring_setup"}, tmp_path))
    daemon.wait_until_ready()
    assert " 0 blocks fetched" not in daemon.load(500)
    assert daemon.metric('kvtier_tier_written_bytes_total{tier="cold",cause="demotion"}') > 0
    assert daemon.metric("kvtier_io_uring_active") == 0
    assert daemon.stop() == 0


def test_the_filter_is_in_force(sandboxed, tmp_path):
    daemon = sandboxed(without({"listen"}, tmp_path))
    assert daemon.process.wait(timeout=20) == 1, "no daemon without a socket"


def test_every_name_stands_once_and_what_gives_power_is_not_among_them():
    names = [name for rule in json.loads(PROFILE.read_text())["syscalls"] for name in rule["names"]]
    assert len(names) == len(set(names))
    assert not {"bpf", "mount", "ptrace", "unshare", "setns", "kexec_load", "init_module", "keyctl", "perf_event_open",
                "process_vm_readv", "userfaultfd", "open_by_handle_at"} & set(names)
