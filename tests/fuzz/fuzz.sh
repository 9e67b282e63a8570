#!/bin/bash
# Builds the libFuzzer programs with clang++, ASan and UBSan, and lets each run. Part of tests/run.sh --full.
#   tests/fuzz/fuzz.sh SECONDS_EACH
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds="${1:?usage: tests/fuzz/fuzz.sh SECONDS_EACH}"
folder=build/fuzz
corpus="$folder/corpus"
mkdir -p "$corpus/parts" "$corpus/image"

cmake -S . -B "$folder" -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang -DKVTIER_CUDA=OFF \
  -DKVTIER_GRPC=OFF -DKVTIER_SANITIZE=address,undefined,fuzzer-no-link >"$folder/configure.log"
ninja -C "$folder" -j"${KVTIER_JOBS:-$(nproc)}" kvtier_fuzz_parts kvtier_fuzz_image kvtier_fuzz_seeds

"$folder/bin/kvtier_fuzz_seeds" "$corpus/image"
# What a run finds new stays in the corpus for the next. A crash is left in $folder/crash-*.
for target in parts image; do
  "$folder/bin/kvtier_fuzz_$target" -max_total_time="$seconds" -max_len=65536 -timeout=20 -print_final_stats=1 \
    -artifact_prefix="$folder/" "$corpus/$target"
done
