#!/usr/bin/python3
"""Errors of K, V and the attention output when a fixture goes through the codecs, computed by the numpy reference.

    python3 tests/reference/errors.py --fixture tests/data/smollm2-135m.kv.f16 --tokens-per-block 64 --codec kv4p --json

Blocks are consecutive tokens, all layers of the fixture in each. The block at position 0 keeps one raw row.
All errors are relative rms: sqrt(sum (x - x^)^2 / sum x^2), over everything (`k`, `v`, `attention`) and by block and layer.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import codecs_reference as codecs  # noqa: E402
from fixtures import DIM, LAYERS, TOKENS, Fixture, attention  # noqa: E402


def through_codec(k, v, codec, tokens_per_block, nb):
    """K and V of one layer after every block has been encoded and decoded."""
    if codec == "raw16":
        return k, v
    k_out, v_out = np.empty_like(k), np.empty_like(v)
    for first in range(0, k.shape[1], tokens_per_block):
        block = slice(first, first + tokens_per_block)
        nraw = 1 if first == 0 else 0
        if codec == "kv8":
            k_out[:, block], v_out[:, block] = codecs.decode_kv8(codecs.encode_kv8(k[:, block], v[:, block], nraw))
        else:
            k_out[:, block], v_out[:, block] = codecs.decode(codecs.encode(k[:, block], v[:, block], nraw, nb), codec)
    return k_out, v_out


def block_errors(decoded, original, tokens_per_block):
    """[block][layer] relative rms error."""
    blocks = []
    for first in range(0, TOKENS, tokens_per_block):
        block = slice(first, first + tokens_per_block)
        blocks.append([codecs.relative_rms(*codecs.squares(original[layer][:, block], decoded[layer][:, block]))
                       for layer in range(LAYERS)])
    return blocks


def overall(decoded, original):
    pairs = [codecs.squares(x, y) for x, y in zip(original, decoded)]
    return codecs.relative_rms(sum(p[0] for p in pairs), sum(p[1] for p in pairs))


def measure(fixture, codec, tokens_per_block, nb):
    k, v = [fixture.kv[layer, 0] for layer in range(LAYERS)], [fixture.kv[layer, 1] for layer in range(LAYERS)]
    through = [through_codec(k[layer], v[layer], codec, tokens_per_block, nb) for layer in range(LAYERS)]
    k_out, v_out = [pair[0] for pair in through], [pair[1] for pair in through]
    exact = [attention(fixture.q[layer], k[layer], v[layer]) for layer in range(LAYERS)]
    output = [attention(fixture.q[layer], k_out[layer], v_out[layer]) for layer in range(LAYERS)]
    return {"k": overall(k_out, k), "v": overall(v_out, v), "attention": overall(output, exact),
            "attention_by_layer": [overall([output[layer]], [exact[layer]]) for layer in range(LAYERS)],
            "k_by_block_and_layer": block_errors(k_out, k, tokens_per_block),
            "v_by_block_and_layer": block_errors(v_out, v, tokens_per_block)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fixture", required=True, help="a *.kv.f16 file; its *.q.f16 lies beside it")
    parser.add_argument("--tokens-per-block", type=int, default=64, choices=(64, 128))
    parser.add_argument("--codec", default="all", choices=("all",) + codecs.CODECS)
    parser.add_argument("--nb", type=int, default=codecs.default_nb(DIM), help="boosted K channels per head")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.nb % 4 != 0 or not 0 <= args.nb <= DIM:
        parser.error(f"--nb must be a multiple of 4 from 0 to {DIM}")

    fixture = Fixture(args.fixture)
    names = codecs.CODECS if args.codec == "all" else (args.codec,)
    results = {name: measure(fixture, name, args.tokens_per_block, args.nb) for name in names}
    if args.json:
        print(json.dumps({"fixture": Path(args.fixture).name, "tokens_per_block": args.tokens_per_block, "nb": args.nb,
                          "codecs": results}))
        return
    print(f"{'codec':6} {'K':>9} {'V':>9} {'attention':>9}")
    for name, result in results.items():
        print(f"{name:6} {result['k']:9.6f} {result['v']:9.6f} {result['attention']:9.6f}")


if __name__ == "__main__":
    main()
