"""The lints can fail: each is shown a small tree with one planted problem."""
import layers
import names
import readme
import registers


def plant(root, files):
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return str(root)


def layer_problems(root, files):
    return list(layers.problems(plant(root, files)))


def test_downward_includes_pass(tmp_path):
    assert layer_problems(tmp_path, {
        "tiers/base/status.h": "",
        "codecs/codec.h": '#include <vector>\n\n#include "tiers/base/status.h"\n',
        "tiers/image.h": '#include "codecs/codec.h"\n',
        "tests/tiers/image_test.cc": '#include <gtest/gtest.h>\n#include "tiers/image.h"\n',
    }) == []


def test_every_floor_that_a_part_may_include_is_below_it():
    for part, (floor, allowed) in layers.FLOORS.items():
        for prefix in allowed:
            below = layers.part_of(prefix)
            leaf = below in (None, "tiers/base/")
            assert leaf or layers.FLOORS[below][0] < floor, (part, prefix)


def test_an_upward_include_fails(tmp_path):
    found = layer_problems(tmp_path, {
        "daemon/engine/engine.h": "",
        "tiers/move.cc": '#include <vector>\n#include "daemon/engine/engine.h"\n',
    })
    assert len(found) == 1 and found[0].startswith("tiers/move.cc:2: tiers/ (floor 2) may not include daemon/engine/")


def test_the_base_is_a_leaf(tmp_path):
    assert len(layer_problems(tmp_path, {"tiers/image.h": "", "tiers/base/clock.h": '#include "tiers/image.h"\n'})) == 1


def test_the_client_library_stays_out_of_the_daemon(tmp_path):
    assert len(layer_problems(tmp_path, {"daemon/engine/engine.h": "",
                                         "client/client.cc": '#include "daemon/engine/engine.h"\n'})) == 1


def test_a_library_outside_its_part_fails(tmp_path):
    found = layer_problems(tmp_path, {
        "daemon/engine/engine.cc": "#include <rocksdb/db.h>\n",
        "tiers/cold_store.cc": "#include <prometheus/counter.h>\n",
        "daemon/policy/lru.cc": "#include <mutex>\n",
        "daemon/engine/command.h": '#include "proto/kvtier.pb.h"\n',
        "codecs/table.cc": "#include <grpcpp/grpcpp.h>\n",
    })
    assert len(found) == 5


def test_an_include_that_is_not_from_the_root_fails(tmp_path):
    assert len(layer_problems(tmp_path, {"tiers/image.h": "", "tiers/image.cc": '#include "image.h"\n'})) == 1


def name_problems(root, files):
    whole = {name if "." in name else f"{name}/CMakeLists.txt": "" for name in names.TOP_LEVEL}
    return list(names.problems(plant(root, {**whole, **files})))


def test_the_agreed_top_level_passes(tmp_path):
    assert name_problems(tmp_path, {".gitignore": "", "tiers/place.cc": "int x;\n"}) == []


def test_another_folder_at_the_top_fails(tmp_path):
    assert len(name_problems(tmp_path, {"docs/a.md": ""})) == 1


def test_unfinished_work_fails(tmp_path):
    assert len(name_problems(tmp_path, {"tiers/a.cc": "// TO" "DO: later\n", "deploy/b.sh": "# fix" "me\n"})) == 2


def test_a_machine_path_fails(tmp_path):
    assert len(name_problems(tmp_path, {"tiers/a.cc": 'const char* kPath = "/ho' 'me/me/x";\n'})) == 1
    assert name_problems(tmp_path, {"tiers/a.cc": '#include "a/work/b.h"\n'}) == []


def test_a_long_source_and_a_wrong_name_fail(tmp_path):
    assert len(name_problems(tmp_path, {"tiers/a.cc": "\n" * 451, "tiers/MyFile.cc": ""})) == 2


def test_a_header_without_a_guard_fails(tmp_path):
    assert len(name_problems(tmp_path, {"tiers/a.h": "", "tiers/b-inl.h": ""})) == 2
    assert name_problems(tmp_path, {"tiers/a.h": "#pragma once\n", "tiers/b-inl.h": "#ifdef HWY_TARGET_TOGGLE\n"}) == []


def readme_problems(root, text, example):
    return list(readme.problems(plant(root, {"README.md": text, "tests/client/readme_example.cc": example,
                                             "codecs/table.cc": ""})))


def test_a_true_readme_passes(tmp_path):
    text = "See `codecs/table.cc`, add `codecs/foo.cc`.\n```cpp\nint main() {}\n```\n"
    assert readme_problems(tmp_path, text, "int main() {}\n") == []


def test_an_example_that_is_not_the_compiled_one_fails(tmp_path):
    assert len(readme_problems(tmp_path, "```cpp\nint main() {}\n```\n", "int main() { return 0; }\n")) == 1


def test_a_file_that_does_not_exist_fails(tmp_path):
    assert len(readme_problems(tmp_path, "`codecs/tables.cc`\n```cpp\nx\n```\n", "x\n")) == 1


def ptxas_log(spilled, architectures=registers.ARCHITECTURES):
    return "".join(f"""ptxas info    : Compiling entry function '_ZN6kvtier10GoodKernelENS_8GoodArgsE' for 'sm_{number}'
ptxas info    : Function properties for _ZN6kvtier10GoodKernelENS_8GoodArgsE
    320 bytes stack frame, {spilled} bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 320 bytes cumulative stack size
""" for number in architectures)


def test_a_kernel_that_fits_passes():
    found = list(registers.usages(ptxas_log(0)))
    assert found[0] == ("GoodKernel", 80, 32, 320, 0) and len(found) == 3
    assert list(registers.problems(found)) == []


def test_a_spill_in_a_function_that_is_not_inlined_fails():
    log = ptxas_log(0) + """ptxas info    : Function properties for _ZN6kvtier8internal4RareEPKf
    0 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
"""
    found = list(registers.usages(log))
    assert found[-1] == ("Rare", 100, 0, 0, 8)
    assert "Rare spills registers on sm_100" in list(registers.problems(found))


def test_a_spill_a_missing_architecture_and_an_empty_log_fail():
    assert len(list(registers.problems(list(registers.usages(ptxas_log(8)))))) == 3
    assert len(list(registers.problems(list(registers.usages(ptxas_log(0, [80, 90])))))) == 1
    assert len(list(registers.problems([]))) == 1


def test_a_body_that_is_not_compiled_for_gpus_fails():
    headers = {"kernels/a.h": "template <Team T>\nKVTIER_HD void A(const T& team, const AArgs& args) {}", "kernels/tile.h": ""}
    assert len(list(registers.left_out("", headers))) == 1
    assert list(registers.left_out('#include "kernels/a.h"\n', headers)) == []
