#!/usr/bin/env python3
"""Compiles kernels for the GPUs that kvtier knows and prints what each takes of them. Fails when a kernel spills
registers, when one is missing for an architecture, or when a header with a body is compiled in no source.

usage: registers.py NVCC SOURCE OBJECT   (from the root of the repository; OBJECT.d gets the dependencies)
"""
import collections
import pathlib
import re
import subprocess
import sys

ARCHITECTURES = (80, 90, 100)
# No contraction: the bytes are those of the host. The newest also as PTX, for what comes after it.
FLAGS = ["-std=c++20", "-O2", "-Xcompiler=-fPIC,-fvisibility=hidden", "-fmad=false", "--expt-relaxed-constexpr", "--threads=2", "-Werror=all-warnings",
         "-Xcompiler=-Wall,-Wextra", "-Xptxas=-v",
         *(f"-gencode=arch=compute_{number},code=sm_{number}" for number in ARCHITECTURES),
         "-gencode=arch=compute_{0},code=compute_{0}".format(ARCHITECTURES[-1])]

ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\d+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
FUNCTION = re.compile(r"Function properties for (\w+)")
BODY = re.compile(r"template <[^>]*Team T>\nKVTIER_HD void \w+\(const T& team, const \w+Args& args\)")

Usage = collections.namedtuple("Usage", "kernel architecture registers stack_bytes spill_bytes")


def short_name(symbol):
    """`Kernel` of _ZN6kvtier8internal6KernelE..."""
    name, rest = symbol, symbol.removeprefix("_ZN")
    while match := re.match(r"(\d+)", rest):
        begin, length = match.end(), int(match.group(1))
        name, rest = rest[begin:begin + length], rest[begin + length:]
    return name


def usages(log):
    """What ptxas says of each kernel, and of each function that is not inlined (which has no registers of its own)."""
    entry = architecture = function = frame = None
    for line in log.splitlines():
        if match := ENTRY.search(line):
            entry, architecture = match.group(1), int(match.group(2))
        elif match := FUNCTION.search(line):
            function = match.group(1)
        elif match := FRAME.search(line):
            frame = [int(number) for number in match.groups()]
            if function != entry:
                yield Usage(short_name(function), architecture, 0, frame[0], frame[1] + frame[2])
        elif match := REGISTERS.search(line):
            yield Usage(short_name(entry), architecture, int(match.group(1)), frame[0], frame[1] + frame[2])


def table(found):
    yield f"{'kernel':<28}{'sm':>5}{'registers':>11}{'stack B':>9}{'spill B':>9}"
    for usage in found:
        yield "{0:<28}{1:>5}{2:>11}{3:>9}{4:>9}".format(*usage)


def problems(found):
    if not found:
        yield "ptxas reports no kernel"
    for usage in found:
        if usage.spill_bytes > 0:
            yield f"{usage.kernel} spills registers on sm_{usage.architecture}"
    for kernel in sorted({usage.kernel for usage in found}):
        missing = set(ARCHITECTURES) - {usage.architecture for usage in found if usage.kernel == kernel}
        for architecture in sorted(missing):
            yield f"{kernel} is not compiled for sm_{architecture}"


def left_out(source_text, headers):
    """Of `headers` (path: text), those with a kernel body that no source includes."""
    for path, text in sorted(headers.items()):
        if BODY.search(text) and f'#include "{path}"' not in source_text:
            yield f"{path} has a kernel body that is not compiled for GPUs"


def main():
    nvcc, source, target = sys.argv[1:]
    root = pathlib.Path.cwd()  # absolute, as CMake wants the dependencies
    run = subprocess.run([nvcc, *FLAGS, f"-I{root}", "-MD", "-MF", target + ".d", "-c", root / source, "-o", target],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if run.returncode != 0:
        print(run.stdout)
        return run.returncode
    found = sorted(usages(run.stdout))
    print("\n".join(table(found)))
    headers = {str(path): path.read_text() for path in pathlib.Path("kernels").glob("*.h")}
    sources = "".join(path.read_text() for path in pathlib.Path("kernels/cuda").glob("*.cu"))
    wrong = [*problems(found), *left_out(sources, headers)]
    for problem in wrong:
        print(problem)
    if wrong:
        pathlib.Path(target).unlink()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
