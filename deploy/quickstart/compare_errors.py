#!/usr/bin/python3
"""Compares the errors that kvtier-quickstart measured with those of the numpy reference, which encodes the same KV itself.

usage: compare_errors.py DATA_FOLDER REFERENCE_SCRIPT ERRORS_CSV
"""
import csv
import json
import subprocess
import sys

CODECS = {"BITS16": "raw16", "BITS8": "kv8", "INT4": "kv4p", "K4V2": "kv42", "INT2": "kv2p"}
TOKENS_PER_BLOCK = 128
# Decoded values are equal bit for bit; sums of float64 differ by their order.
TOLERANCE = 1e-6


def reference(script, data, model, codec):
    command = ["/usr/bin/python3", "-B", script, "--fixture", f"{data}/{model}.kv.f16", "--json",
               "--tokens-per-block", str(TOKENS_PER_BLOCK), "--codec", codec]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["codecs"][codec]


def expected(errors, row):
    if row["what"] == "attention":
        return errors["attention"]
    return errors[f"{row['what']}_by_block_and_layer"][int(row["block"])][int(row["layer"])]


def main():
    data, script, measured = sys.argv[1:]
    with open(measured, newline="") as source:
        rows = list(csv.DictReader(source))
    known = {}
    wrong = 0
    for row in rows:
        which = (row["model"], CODECS[row["precision"]])
        if which not in known:
            known[which] = reference(script, data, *which)
        want, got = expected(known[which], row), float(row["error"])
        if abs(want - got) > TOLERANCE * max(abs(want), 1):
            wrong += 1
            print(f"{row}: the reference has {want:.9g}")
    codecs = ", ".join(f"{model} {codec}" for model, codec in sorted(known))
    print(f"{len(rows)} errors of K, V and attention compared ({codecs}): {wrong} differ")
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
