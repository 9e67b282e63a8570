"""Runs a program under a system-call filter: sandbox.py FILTER.json PROGRAM ARGUMENTS...

FILTER.json: {"errno": N, "allow": [names]}, or a seccomp profile as container runtimes read it. A name that this machine's
libseccomp does not know is left out, as runtimes do.
"""
import json
import os
import sys

import seccomp


def allowed(profile):
    if "allow" in profile:
        return profile["errno"], profile["allow"]
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    names = []
    for rule in profile["syscalls"]:
        assert rule["action"] == "SCMP_ACT_ALLOW" and not rule.get("args")
        names += rule["names"]
    return profile["defaultErrnoRet"], names


def main():
    with open(sys.argv[1]) as source:
        errno, names = allowed(json.load(source))
    sandbox = seccomp.SyscallFilter(seccomp.ERRNO(errno))  # sets no_new_privs, too
    for name in names:
        if seccomp.resolve_syscall(seccomp.Arch(), name) >= 0:
            sandbox.add_rule(seccomp.ALLOW, name)
    sandbox.load()
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
