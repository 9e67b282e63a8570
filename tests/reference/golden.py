"""The golden blocks of tests/data: where their input lies in the fixtures."""

from collections import namedtuple
from pathlib import Path

import numpy as np

from fixtures import Fixture

DATA = Path(__file__).resolve().parent.parent / "data"

Case = namedtuple("Case", "name fixture layer first tokens nraw nb merged_dim codecs")

SMOL, QWEN = "smollm2-135m", "qwen2.5-coder-0.5b"
ALL, ENDS, INT2 = ("kv4p", "kv42", "kv2p"), ("kv4p", "kv2p"), ("kv2p",)
ALL_AND_KV8 = ALL + ("kv8",)
CASES = [
    Case("smollm2-L14-b0", SMOL, 2, 0, 64, 1, 8, None, ALL_AND_KV8),
    Case("smollm2-L14-b3", SMOL, 2, 192, 64, 0, 8, None, ALL),
    Case("smollm2-L14-b3-nb32", SMOL, 2, 192, 64, 0, 32, None, INT2),
    Case("qwen-L0-b1", QWEN, 0, 64, 64, 0, 8, None, ALL_AND_KV8),
    Case("qwen-L0-T128-nb32", QWEN, 0, 128, 128, 0, 32, None, ENDS),
    Case("smollm2-L29-b6-tie", SMOL, 3, 384, 64, 0, 8, None, INT2),
    Case("qwen-L12-b2-tie", QWEN, 2, 128, 64, 0, 8, None, INT2),
    Case("qwen-L23-b4-tie", QWEN, 3, 256, 64, 0, 8, None, INT2),
    Case("qwen-L12-T128", QWEN, 2, 128, 128, 0, 16, None, ENDS),
    Case("qwen-L12-T36", QWEN, 2, 64, 36, 0, 8, None, ENDS),
    Case("smollm2-L1-D192", SMOL, 1, 64, 64, 0, 24, 192, ENDS),
    Case("smollm2-L1-D192-nb96", SMOL, 1, 64, 64, 0, 96, 192, INT2),
    Case("qwen-L23-D80-raw4", QWEN, 3, 0, 64, 4, 8, 80, ENDS),
]


def load(case):
    """K and V of the case, float16 [heads, tokens, dim]."""
    kv = Fixture(DATA / f"{case.fixture}.kv.f16").kv[case.layer][:, :, case.first:case.first + case.tokens]
    if case.merged_dim:  # heads side by side as the channels of one
        kv = np.concatenate(list(kv.transpose(1, 0, 2, 3)), axis=-1)[:, None, :, :case.merged_dim]
    return kv[0], kv[1]
