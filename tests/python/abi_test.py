"""The ctypes structs against what a C compiler makes of the header, and the codes against its names."""

import ctypes
import re
import subprocess

from conftest import ROOT

HEADER = ROOT / "client/include/kvtier/kvtier.h"
NAMES = {  # ctypes struct: C name
    "Options": "kvtier_options", "ModelSpec": "kvtier_model_spec", "BlockRef": "kvtier_block_ref",
    "Query": "kvtier_query", "Match": "kvtier_match", "LookupResult": "kvtier_lookup_result",
    "AcquireOptions": "kvtier_acquire_options", "BlockInfo": "kvtier_block_info", "View": "kvtier_view",
    "BlockResult": "kvtier_block_result", "Attention": "kvtier_attention", "PutOptions": "kvtier_put_options",
    "PutResult": "kvtier_put_result", "TierStats": "kvtier_tier_stats", "Stats": "kvtier_stats",
}


def from_c(tmp_path, lines):
    source = tmp_path / "layout.c"
    body = "\n".join(lines)
    source.write_text("#include <kvtier/kvtier.h>\n#include <stdio.h>\n#include <stddef.h>\n"
                      f"int main(void) {{\n{body}\nreturn 0; }}\n")
    subprocess.run(["cc", "-I", ROOT / "client/include", source, "-o", tmp_path / "layout"], check=True, timeout=60)
    said = subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True, timeout=60).stdout
    return dict(line.split("=") for line in said.split())


def test_every_struct_of_the_header_is_here_and_laid_out_alike(tmp_path):
    from kvtier import _abi

    in_header = set(re.findall(r"^} (kvtier_\w+);", HEADER.read_text(), re.M)) - {
        "kvtier_code", "kvtier_precision", "kvtier_dtype"}
    assert in_header == set(NAMES.values())
    expected, lines = {}, []
    for ours, theirs in NAMES.items():
        struct = getattr(_abi, ours)
        expected[theirs] = ctypes.sizeof(struct)
        lines.append(f'printf("{theirs}=%zu\\n", sizeof({theirs}));')
        for field, _ in struct._fields_:
            expected[f"{theirs}.{field}"] = getattr(struct, field).offset
            lines.append(f'printf("{theirs}.{field}=%zu\\n", offsetof({theirs}, {field}));')
    assert {name: int(value) for name, value in from_c(tmp_path, lines).items()} == expected


def test_the_enumerations_are_those_of_the_header(tmp_path):
    from kvtier import _abi

    names = {f"KVTIER_{name}": code for name, code in _abi.Code.__members__.items()}
    names |= {f"KVTIER_{name}": dtype for name, dtype in _abi.DType.__members__.items()}
    names |= {f"KVTIER_{name}": durability for name, durability in _abi.Durability.__members__.items()}
    names |= {f"KVTIER_{name}": precision for name, precision in _abi.Precision.__members__.items() if precision}
    names |= {"KVTIER_PRECISION_ANY": _abi.Precision.ANY, "KVTIER_VIEW_ROTATED_V": _abi.VIEW_ROTATED_V,
              "KVTIER_KEY_BYTES": _abi.KEY_BYTES}
    lines = [f'printf("{name}=%d\\n", (int){name});' for name in names]
    assert {name: int(value) for name, value in from_c(tmp_path, lines).items()} == {n: int(v) for n, v in names.items()}
    in_header = set(re.findall(r"\b(KVTIER_[A-Z0-9_]+) = \d", HEADER.read_text()))
    assert in_header - {"KVTIER_PRECISION_ANY"} <= set(names)


def test_every_function_of_the_header_has_a_prototype():
    from kvtier import _abi

    declared = set(re.findall(r"\b(kvtier_\w+)\(", re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)))
    assert declared - {"kvtier_code_name", "kvtier_precision_name"} == set(_abi.PROTOTYPES)
