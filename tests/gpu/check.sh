#!/bin/bash
# On a machine with a GPU, nvcc and g++: builds the kernels, checks them byte for byte, measures them.
#   tests/gpu/check.sh [FOLDER]     build and results in FOLDER (build/gpu); results.json there is what was measured
#   KVTIER_GPU_BUILD_ONLY=1         stops after the build: FOLDER can be copied to the machine with the GPU
# Needs neither CMake nor any library but the CUDA runtime; cuBLAS is measured beside the kernels where it is. Exits non-zero when a check fails, and
# with 3 where there is no GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder="${1:-build/gpu}"
mkdir -p "$folder"
nvcc="$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)"

if [ "${KVTIER_GPU_BUILD_ONLY:-0}" = 0 ] && ! nvidia-smi -L >/dev/null 2>&1; then
  echo "tests/gpu/check.sh: no GPU on this machine (nvidia-smi finds none); the kernels are checked on the CPU by kvtier_gpu_test"
  exit 3
fi

if [ ! -x "$folder/kvtier-gpu-check" ] || [ -x "$nvcc" ]; then
  [ -x "$nvcc" ] || { echo "tests/gpu/check.sh: no nvcc, and no kvtier-gpu-check in $folder"; exit 2; }
  if [ "${KVTIER_GPU_BUILD_ONLY:-0}" = 0 ]; then
    number="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)"
    targets=("-gencode=arch=compute_$number,code=sm_$number")
  else
    targets=(-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90 -gencode=arch=compute_100,code=sm_100
             -gencode=arch=compute_100,code=compute_100)
  fi
  flags=(-std=c++20 -O2 --expt-relaxed-constexpr -I. "${targets[@]}")
  include="$(dirname "$(dirname "$(readlink -f "$nvcc")")")/include"
  echo "building into $folder"
  jobs=()
  for source in attend cut decode encode requantize; do
    "$nvcc" "${flags[@]}" -fmad=false -c "kernels/cuda/$source.cu" -o "$folder/$source.o" &
    jobs+=($!)
  done
  for source in bench bench_attention; do
    "$nvcc" "${flags[@]}" -c "tests/gpu/$source.cu" -o "$folder/$source.o" &
    jobs+=($!)
  done
  for source in tests/gpu/conformance_attention tests/gpu/conformance_golden tests/gpu/conformance_shapes tests/gpu/check \
                tests/support/fixture; do
    g++ -std=c++20 -O2 -ffp-contract=off -I. -isystem "$include" -c "$source.cc" -o "$folder/$(basename "$source").o" &
    jobs+=($!)
  done
  g++ -std=c++20 -O2 -I. -c tiers/base/status.cc -o "$folder/status.o" &
  jobs+=($!)
  for job in "${jobs[@]}"; do wait "$job"; done
  "$nvcc" -o "$folder/kvtier-gpu-check" "$folder"/*.o
fi
[ "${KVTIER_GPU_BUILD_ONLY:-0}" = 0 ] || exit 0
"$folder/kvtier-gpu-check" tests/data "$folder/results.json"
