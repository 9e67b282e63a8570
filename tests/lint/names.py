#!/usr/bin/env python3
"""Fails on what does not belong in the repository: another top level, unfinished work, paths of one machine.

usage: names.py [ROOT]
"""
import re
import sys

import tree

TOP_LEVEL = {"CMakeLists.txt", "README.md", "client", "codecs", "daemon", "deploy", "kernels", "monitoring", "proto",
             "tests", "tiers"}
# Split, so that this file does not match itself.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b|not imple" r"mented", re.IGNORECASE)
MACHINE_PATH = re.compile(r"(?<![\w./$}])/(wo" r"rk|ro" r"ot|ho" r"me)/\w|(?<![\w./$}])/t" r"mp/\w")
CXX = (".h", ".cc", ".cuh", ".cu")
# "-inl.h" is Highway's: compiled once for each set of instructions, so with a guard of its own in place of the pragma.
CXX_NAME = re.compile(r"[a-z0-9_]+(-inl\.h|\.(h|cc|cuh|cu))")
GUARDS = ("#pragma once", "#ifndef", "_INL_H_", "HWY_TARGET_TOGGLE")
# STYLE: sources of about 400 lines. Above this bound a file has two jobs.
MAX_LINES = 450
LARGEST_BYTES = 2 << 20


def line_problems(path, text):
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, what in ((UNFINISHED, "unfinished work"), (MACHINE_PATH, "a path of one machine")):
            match = pattern.search(line)
            if match:
                yield f"{path}:{number}: {what}: {match.group(0)}"


def problems(root):
    paths = tree.files(root)
    top = {path.split("/")[0] for path in paths if not path.startswith(".")}
    for name in sorted(top - TOP_LEVEL):
        yield f"{name}: does not belong at the top level"
    for name in sorted(TOP_LEVEL - top):
        yield f"{name}: missing at the top level"
    for path in paths:
        text = tree.read(root, path)
        if len(text) > LARGEST_BYTES:
            yield f"{path}: {len(text)} bytes"
        if path.startswith("tests/data/"):
            continue
        yield from line_problems(path, text)
        if path.endswith(CXX):
            if not CXX_NAME.fullmatch(path.rsplit("/", 1)[-1]):
                yield f"{path}: source names are snake_case"
            if text.count("\n") > MAX_LINES:
                yield f"{path}: {text.count(chr(10))} lines, at most {MAX_LINES}"
            if path.endswith((".h", ".cuh")) and not any(guard in text for guard in GUARDS):
                yield f"{path}: no #pragma once"


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else "."
    found = list(problems(root))
    for problem in found:
        print(problem)
    print(f"names: {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
