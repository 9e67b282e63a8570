#!/usr/bin/env python3
"""Prints the values that keys_test.cc expects, computed from codecs/FORMAT.md ("Keys") by hashlib alone."""
import hashlib
import struct


def digest(*fields):
    return hashlib.sha256(b"".join(struct.pack("<I", len(f)) + f for f in fields)).digest()


def u32(value):
    return struct.pack("<I", value)


def u64(value):
    return struct.pack("<Q", value)


def tokens(values):
    return struct.pack(f"<{len(values)}i", *values)


TEXTS = [b"qwen2.5-coder-0.5b", b"main", b"", b"rope:1000000", b"", b"nhd"]
NUMBERS = [0, 24, 2, 64, 64, 1, 64, 1, 2, 0, 1, 0, 1, 1, 32, 0]  # layer group .. floor
SCALES = [struct.pack("<24f", *[0.5] * 24), b""]  # of K by layer; of V: none
name_space = digest(b"ns", b"uid:1000", *TEXTS, *map(u32, NUMBERS), *SCALES, u32(2))
print("namespace", name_space.hex())

parent = name_space
for i in range(2):
    ids = list(range(i * 64, i * 64 + 64))
    parent = digest(b"block", parent, u64(i * 64), tokens(ids), b"")
    print("block", i, parent.hex())
print("tail", digest(b"tail", parent, u64(128), tokens([128, -1]), b"").hex())
item = bytes(range(32)) + u32(7)
print("block with an item", digest(b"block", parent, u64(128), tokens(range(64)), item).hex())
print("foreign", digest(b"foreign", name_space, b"engine-hash").hex())
