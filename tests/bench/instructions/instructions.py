#!/usr/bin/env python3
"""Counts the instructions that codecs spend on an element and compares them with the kept table: a slowdown shows
without a clock. Callgrind counts; its CPU has AVX2 but no AVX-512, so it is the AVX2 path that is counted. What libc
spends is left out: its memcpy goes by the sizes of the machine's caches.

usage: instructions.py PROGRAM TABLE [--update]    (--update keeps what is counted now)
"""
import collections
import pathlib
import re
import subprocess
import sys
import tempfile

TOLERANCE = 0.05
SLACK = 0.005  # instructions per element: for operations that are little more than a memcpy
MEASURED = "kvtier_measured_operation"
TITLE = f"# Instructions per element, as {pathlib.Path(__file__).name} --update counted them.\n"

Row = collections.namedtuple("Row", "operation shape level")


def count(program):
    """{Row: instructions per element}, in the program's order."""
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", f"--zero-before={MEASURED}",
             f"--dump-after={MEASURED}", "--compress-strings=no", "--compress-pos=no", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if run.returncode != 0:
            sys.exit(run.stderr)
        return rows_of(run.stdout, lambda number: (pathlib.Path(folder) / f"out.{number}").read_text())


def rows_of(output, dump_text):
    rows = {}
    for number, line in enumerate(output.splitlines(), 1):
        *row, elements = line.split("\t")
        rows[Row(*row)] = own_instructions(dump_text(number)) / int(elements)
    return rows


def own_instructions(dump):
    """Self cost of everything outside libc in a dump without compression."""
    total, is_own, is_call = 0, True, False
    for line in dump.splitlines():
        if line.startswith("ob="):
            is_own = not re.search(r"/libc[.-]", line)
        elif line.startswith("calls="):
            is_call = True  # the next line has what the callee spends, which is counted there
        elif match := re.match(r"\d+ (\d+)$", line):
            total += int(match.group(1)) if is_own and not is_call else 0
            is_call = False
    return total


def read_table(text):
    """The reverse of write_table."""
    rows = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            operation, shape, level, value = (field.strip() for field in line.split("|"))
            rows[Row(operation, shape, level)] = float(value)
    return rows


def write_table(rows):
    lines = (f"{row.operation:<28}| {row.shape:<11}| {row.level:<9}| {value:8.3f}\n" for row, value in rows.items())
    return TITLE + "".join(lines)


def compare(kept, counted):
    """(what is wrong, what is better), a line each."""
    wrong, better = [], []
    for row in kept.keys() | counted.keys():
        name = " | ".join(row)
        if row not in kept or row not in counted:
            wrong.append(f"{name}: only {'counted' if row in counted else 'in the table'}")
            continue
        change = counted[row] / max(kept[row], SLACK) - 1
        line = f"{name}: {kept[row]:.3f} -> {counted[row]:.3f} ({change:+.1%})"
        if counted[row] > kept[row] * (1 + TOLERANCE) + SLACK:
            wrong.append(line)
        elif counted[row] < kept[row] * (1 - TOLERANCE) - SLACK:
            better.append(line)
    return sorted(wrong), sorted(better)


def main():
    program, path = sys.argv[1], pathlib.Path(sys.argv[2])
    counted = count(program)
    if "--update" in sys.argv[3:]:
        path.write_text(write_table(counted))
        print(f"{path}: {len(counted)} rows")
        return 0
    wrong, better = compare(read_table(path.read_text()), counted)
    for line in wrong:
        print("worse:", line)
    for line in better:
        print("better, keep it with --update:", line)
    print(f"instructions: {len(counted)} rows, {len(wrong)} worse, {len(better)} better")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
