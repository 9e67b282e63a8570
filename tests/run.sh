#!/bin/bash
# Builds and tests kvtier from a fresh clone on Debian 12, as root where packages are missing.
#   tests/run.sh          what CI runs: g++ (and nvcc where it is), ASan+UBSan, TSan, lint; under 45 minutes on 2 cores
#   tests/run.sh --full   and clang++, clang-tidy, fuzzing, NEON under QEMU, DAX memory and power cuts in a virtual
#                         machine, more simulation seeds, the Debian package in a fresh Debian,
#                         the benchmark's checks, and llama.cpp, vLLM, SGLang, LMCache and transformers on kvtier (fetched from
#                         PyPI and built once, outside the tree)
# Ends with ctest's summary of the main suite. Exits non-zero when anything fails. Everything is built into build/.
set -euo pipefail
cd "$(dirname "$0")/.."

full=no
case "${1:-}" in
  "") ;;
  --full) full=yes ;;
  *) echo "usage: $0 [--full]" >&2; exit 2 ;;
esac
jobs="${KVTIER_JOBS:-$(nproc)}"
[ "$full" = no ] || export KVTIER_SIM_SEEDS="${KVTIER_SIM_SEEDS:-200}"

stage() {
  echo
  echo "== $(printf '%4d' $SECONDS) s  $*"
}

# build FOLDER TARGETS CMAKE_ARGUMENTS...
build() {
  local folder="$1" targets="$2"
  shift 2
  mkdir -p "$folder"
  cmake -S . -B "$folder" -G Ninja "$@" >"$folder/configure.log" 2>&1 || { cat "$folder/configure.log"; return 1; }
  sed -n 's/^-- skipped: /skipped: /p' "$folder/configure.log"
  # shellcheck disable=SC2086
  ninja -C "$folder" -j"$jobs" $targets
}

run_ctest() {
  local folder="$1"
  shift
  local failed=0
  ctest --test-dir "$folder" -j"$jobs" --output-on-failure --no-tests=error --timeout 300 "$@" </dev/null || failed=$?
  # Tests that this machine cannot run say why.
  awk '/: Skipped$/ { getline; print "skipped: " $0 } sub(/^SKIPPED /, "skipped: ")' "$folder/Testing/Temporary/LastTest.log" | sort | uniq -c
  return "$failed"
}

main() {
  stage "packages"
  deploy/install-deps.sh "$([ "$full" = yes ] && echo full || echo test)"
  tests/deploy/fetch.sh || echo "hadolint and the schemas of Kubernetes could not be fetched: the tests that need them fail"
  export KVTIER_TOOLS_REQUIRED=1

  local engine=()
  if [ "$full" = yes ]; then
    stage "llama.cpp, two models and a text: fetch and build"
    deploy/fetch-llamacpp.sh llama smollm2 qwen text
    engine=(-DKVTIER_LLAMACPP="$(deploy/fetch-llamacpp.sh folder)")
  fi

  stage "g++ RelWithDebInfo: build"
  build build "all header_check" "${engine[@]}"

  if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
    echo "skipped: compiling the kernels for GPUs, no nvcc in PATH or /usr/local/cuda/bin"
  fi

  stage "ASan + UBSan: build and test"
  build build/asan all -DKVTIER_CUDA=OFF -DKVTIER_SANITIZE=address,undefined
  run_ctest build/asan -LE no_sanitizer

  stage "TSan: build and test what is free of gRPC"
  build build/tsan all -DKVTIER_CUDA=OFF -DKVTIER_SANITIZE=thread -DKVTIER_GRPC=OFF
  TSAN_OPTIONS="suppressions=$PWD/tests/support/tsan.supp" run_ctest build/tsan -LE no_sanitizer

  if [ "$full" = yes ]; then
    stage "clang++: build and test"
    build build/clang all -DKVTIER_CUDA=OFF -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang
    run_ctest build/clang -LE lint
    stage "clang-tidy"
    tests/lint/tidy.sh build/clang "$jobs"
    stage "libFuzzer: every target of tests/fuzz"
    KVTIER_JOBS="$jobs" tests/fuzz/fuzz.sh "${KVTIER_FUZZ_SECONDS:-60}"
    stage "aarch64: kernels and codecs under QEMU"
    tests/neon.sh --gtest_brief=1
    stage "virtual machine: CXL tier on DAX memory and a far node"
    KVTIER_BUILD=build tests/qemu/dax.sh
    stage "virtual machine: power cuts"
    KVTIER_BUILD=build tests/qemu/power_loss.sh
    stage "Debian package in a fresh Debian"
    tests/package/deb_chroot.sh build
    stage "benchmark checks"
    build/bin/kvtier-bench ladder
    stage "llama.cpp on kvtier: conversations"
    deploy/llama-demo.sh --no-build
    stage "llama.cpp on kvtier: bit-equal with a model of other shapes"
    KVTIER_TEST_MODEL="${KVTIER_CACHE:-$HOME/.cache/kvtier}/models/Qwen2.5-Coder-0.5B-Instruct.gguf" \
      build/bin/kvtier_llamacpp_engine_test --gtest_brief=1 --gtest_filter='*SameLogits*:*EachByItself*'
    stage "llama.cpp on kvtier: quality of every precision"
    build/bin/kvtier-eval quality --quick
    build/bin/kvtier-eval quality --quick --fp32 --only raw16 --only "raw16, attended" --only kv4p --only "kv4p, attended" \
      --only kv42 --only "kv42, attended" --only kv2p --only "kv2p, attended"
    stage "vLLM, SGLang, LMCache and transformers on kvtier: fetch and test"
    KVTIER_BUILD=build tests/adapters/run.sh
  else
    echo
    echo "skipped without --full: clang++ build, clang-tidy, fuzzing, NEON under QEMU, virtual machines, long simulations, the package in a fresh Debian," \
      "benchmark checks, llama.cpp, the adapters with their engines (tests/adapters/run.sh, 1.2 GB)"
  fi

  stage "g++ RelWithDebInfo: test, and lint"
  run_ctest build
}

main
