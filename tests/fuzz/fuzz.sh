#!/bin/bash
# Builds the fuzzers with clang++, ASan and UBSan, and lets libFuzzer run each target. Part of tests/run.sh --full.
#   tests/fuzz/fuzz.sh SECONDS_EACH [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds="${1:?usage: tests/fuzz/fuzz.sh SECONDS_EACH [TARGET...]}"
shift
folder=build/fuzz
fuzz="$folder/bin/kvtier_fuzz"

mkdir -p "$folder"
cmake -S . -B "$folder" -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang -DKVTIER_CUDA=OFF \
  -DKVTIER_SANITIZE=address,undefined,fuzzer-no-link >"$folder/configure.log"
ninja -C "$folder" -j"${KVTIER_JOBS:-$(nproc)}" kvtier_fuzz

# run TARGET SECONDS: what it finds new stays in the corpus for the next; a crash is left in $folder/TARGET-crash-*.
run() {
  local corpus="$folder/corpus/$1"
  mkdir -p "$corpus"
  "$fuzz" --target="$1" --seeds="$corpus"
  [ ! -d "tests/fuzz/corpus/$1" ] || cp tests/fuzz/corpus/"$1"/* "$corpus/"
  "$fuzz" --target="$1" -max_total_time="$2" -max_len=65536 -timeout=20 -rss_limit_mb=3000 -print_final_stats=1 \
    -artifact_prefix="$folder/$1-" "$corpus"
}

# A fuzzer that finds nothing must be one that can: the planted defect first.
if run canary 60 >"$folder/canary.log" 2>&1; then
  echo "the planted defect was not found: $folder/canary.log" >&2
  exit 1
fi
grep -q 'SUMMARY: .*\(AddressSanitizer\|libFuzzer: deadly signal\)' "$folder/canary.log" || { cat "$folder/canary.log"; exit 1; }
rm -f "$folder"/canary-crash-*
echo "the planted defect was found"

# shellcheck disable=SC2046
[ $# -gt 0 ] || set -- $("$fuzz" --targets)
for target in "$@"; do
  echo "== $target"
  run "$target" "$seconds"
done
