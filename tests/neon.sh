#!/bin/bash
# Builds the kernels, the codecs and their tests for aarch64 and runs them under QEMU: the NEON form of every SIMD path
# against the portable bodies. Part of tests/run.sh --full. Arguments go to both test programs (--gtest_filter=...).
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/neon
jobs="${KVTIER_JOBS:-$(nproc)}"
mkdir -p "$out/include" "$out/apt/lists/partial" "$out/apt/cache/archives/partial" "$out/obj"

# Highway of the other architecture, from the same Debian release; the machine's own package state stays as it is.
if [ ! -e "$out/root" ]; then
  apt="-o Dir::State=$PWD/$out/apt -o Dir::State::status=/dev/null -o Dir::Cache=$PWD/$out/apt/cache
    -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root"
  # shellcheck disable=SC2086
  apt-get $apt -q update </dev/null >"$out/apt.log"
  # shellcheck disable=SC2086
  (cd "$out" && apt-get $apt -q download libhwy1 </dev/null >>apt.log)
  dpkg -x "$out"/libhwy1_*_arm64.deb "$out/root.new"
  mv "$out/root.new" "$out/root"
fi
ln -sfn /usr/include/hwy "$out/include/hwy"  # headers are the same everywhere

flags="-std=c++20 -O2 -Wall -Wextra -Werror -Wno-psabi -ffp-contract=off -DHWY_SHARED_DEFINE -I. -isystem $out/include
  -isystem /usr/src/googletest/googletest/include -isystem /usr/src/googletest/googlemock/include
  -I/usr/src/googletest/googletest"
flags="$flags -DKVTIER_TEST_DATA=\"$PWD/tests/data\" -DKVTIER_BIN_DIR=\"$PWD/build/bin\""

compile() {
  local object="$out/obj/${1//\//_}.o"
  # shellcheck disable=SC2086
  ccache aarch64-linux-gnu-g++ $flags -c "$1" -o "$object"
}
export -f compile
export out flags

library=$(ls kernels/simd/*.cc codecs/*.cc tests/support/{fixture,paths}.cc \
  tiers/base/{aligned_buffer,mapping,memfd,status}.cc)
# Fibers and threads are checked on the machine's own architecture.
tests_of() { ls tests/"$1"/*_test.cc | grep -vE 'teams|canaries'; }
gtest="/usr/src/googletest/googletest/src/gtest-all.cc /usr/src/googletest/googletest/src/gtest_main.cc"
# shellcheck disable=SC2086
printf '%s\n' $library $gtest $(tests_of kernels) $(tests_of codecs) | xargs -P "$jobs" -I{} bash -c 'compile "$1"' _ {}

libraries="$PWD/$out/root/usr/lib/aarch64-linux-gnu"
for suite in kernels codecs; do
  objects=$(for source in $library $gtest $(tests_of $suite); do echo "$out/obj/${source//\//_}.o"; done)
  # shellcheck disable=SC2086
  aarch64-linux-gnu-g++ $objects "$libraries/libhwy.so.1" -lpthread -o "$out/kvtier_${suite}_test"
  qemu-aarch64-static -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$libraries" "$out/kvtier_${suite}_test" "$@"
done
