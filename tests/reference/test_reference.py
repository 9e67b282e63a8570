"""The numpy reference against the golden bytes, and what else it promises."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import codecs_reference as codecs  # noqa: E402
import golden  # noqa: E402

HERE = Path(__file__).resolve().parent
PAIRS = [pytest.param(case, codec, id=f"{case.name}-{codec}") for case in golden.CASES for codec in case.codecs]


@pytest.mark.parametrize("case,codec", PAIRS)
def test_encoding_gives_the_golden_bytes(case, codec):
    if codec == "kv8":
        sections = codecs.encode_kv8(*golden.load(case), case.nraw).sections()
    else:
        sections = codecs.encode(*golden.load(case), case.nraw, case.nb).sections(codec)
    assert sections == (golden.DATA / "golden" / f"{case.name}.{codec}").read_bytes()


@pytest.mark.parametrize("case,codec", PAIRS)
def test_decoding_gives_the_golden_values(case, codec):
    if codec == "kv8":
        k, v = codecs.decode_kv8(codecs.encode_kv8(*golden.load(case), case.nraw))
    else:
        k, v = codecs.decode(codecs.encode(*golden.load(case), case.nraw, case.nb), codec)
    assert k.tobytes() + v.tobytes() == (golden.DATA / "golden" / f"{case.name}.{codec}.f16").read_bytes()


def test_every_golden_file_belongs_to_a_case():
    expected = {f"{case.name}.{codec}{suffix}" for case in golden.CASES for codec in case.codecs for suffix in ("", ".f16")}
    assert {path.name for path in (golden.DATA / "golden").iterdir()} == expected


@pytest.mark.parametrize("case", golden.CASES, ids=lambda case: case.name)
def test_the_listed_errors_are_those_of_the_reference(case):
    listed = dict(line.split(maxsplit=1) for line in (golden.DATA / "errors.txt").read_text().splitlines())
    expected = codecs.layer_errors(*golden.load(case), case.nraw, case.nb)
    assert [float(word) for word in listed[case.name].split()] == pytest.approx(expected, rel=1e-6)


def test_planes_unpack_to_the_codes_that_were_packed():
    codes = np.random.default_rng(1).integers(0, 16, (3, 5, 176))
    high, low = codecs.pack_plane(codes, 2), codecs.pack_plane(codes, 0)
    assert high.shape == (3, 5, 44)
    assert np.array_equal(codecs.unpack_plane(high, 176, 2) + codecs.unpack_plane(low, 176, 0), codes)


def test_rounding_up_is_the_smallest_half_not_below():
    x = np.array([0, 1e-9, 1, np.nextafter(np.float32(1), np.float32(2)), 65504], dtype=np.float32)
    assert codecs.up16(x).tolist() == [0, 2.0**-24, 1, 1 + 2.0**-10, 65504]


def test_the_command_line_prints_one_json_object():
    printed = subprocess.run(
        [sys.executable, HERE / "errors.py", "--fixture", golden.DATA / "smollm2-135m.kv.f16", "--codec", "kv4p",
         "--tokens-per-block", "128", "--nb", "16", "--json"], check=True, capture_output=True, text=True).stdout
    result = json.loads(printed)
    assert (result["tokens_per_block"], result["nb"]) == (128, 16)
    kv4p = result["codecs"]["kv4p"]
    assert 0 < kv4p["k"] < 0.1 and 0 < kv4p["v"] < 0.15 and 0 < kv4p["attention"] < 0.15
    assert [len(layers) for layers in kv4p["k_by_block_and_layer"]] == [4] * 4
