#!/bin/bash
# Compiles the headers of kernels/ as device code for every architecture we ship, so that what is written on a
# machine without a GPU stays compilable for one. Without nvcc it says so and succeeds.
set -euo pipefail
cd "$(dirname "$0")/../.."
nvcc="$(command -v nvcc || true)"
[ -n "$nvcc" ] || nvcc="$(ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)"
if [ -z "$nvcc" ]; then
  echo "skipped: no nvcc here (PATH, /usr/local/cuda/bin)"
  exit 0
fi
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
for header in kernels/*.h; do
  echo "#include \"$header\"" >>"$folder/all.cu"
done
"$nvcc" -std=c++20 --expt-relaxed-constexpr -I. -fmad=false -Xcompiler -Wall,-Wextra -Werror=all-warnings -gencode arch=compute_80,code=sm_80 \
  -gencode arch=compute_90,code=sm_90 -gencode arch=compute_100,code=sm_100 -c -o "$folder/all.o" "$folder/all.cu"
echo "nvcc: $(grep -c include "$folder/all.cu") headers compile for sm_80, sm_90, sm_100"
