"""The comparison of instruction counts can fail."""
import instructions
from instructions import Row

ROW = Row("kv4p decode", "8x128 T64", "avx2")
OTHER = Row("kv4p encode", "8x128 T64", "avx2")


def test_counts_belong_to_the_operations_in_order():
    output = "kv4p decode\t8x128 T64\tavx2\t100\nkv4p encode\t8x128 T64\tavx2\t10\n"
    dumps = {1: "events: Ir\nob=/bin/a\nfn=f\n7 250\n", 2: "ob=/bin/a\nfn=f\n7 70\n"}
    assert instructions.rows_of(output, dumps.get) == {ROW: 2.5, OTHER: 7.0}


def test_calls_are_counted_once_and_libc_never():
    dump = """events: Ir
ob=/build/bin/program
fl=a.cc
fn=f
10 5
cfn=g
calls=2 20
11 600
12 3
fn=g
20 400
ob=/lib/x86_64-linux-gnu/libc.so.6
fn=memcpy
0 200
ob=/lib/x86_64-linux-gnu/libisal.so.2
fn=crc
0 7
totals: 615
"""
    assert instructions.own_instructions(dump) == 5 + 3 + 400 + 7


def test_a_table_reads_back_as_written():
    assert instructions.read_table(instructions.write_table({ROW: 1.25, OTHER: 3.0})) == {ROW: 1.25, OTHER: 3.0}


def test_noise_passes_and_a_slowdown_fails():
    assert instructions.compare({ROW: 1.0}, {ROW: 1.04}) == ([], [])
    wrong, better = instructions.compare({ROW: 2.0}, {ROW: 2.12})
    assert len(wrong) == 1 and "+6.0%" in wrong[0] and better == []


def test_a_gain_passes_and_says_so():
    wrong, better = instructions.compare({ROW: 1.0}, {ROW: 0.5})
    assert wrong == [] and len(better) == 1


def test_a_row_on_one_side_alone_fails():
    assert len(instructions.compare({ROW: 1.0}, {OTHER: 1.0})[0]) == 2
