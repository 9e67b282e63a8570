#!/bin/bash
# The CXL tier on what this machine may not have: fs-DAX on persistent memory and a memory node without processors, in a guest
# (guest.sh). Its unit tests run on the DAX file system, with the persistence that libpmem2 finds there; the real daemon serves
# from both. Exits non-zero when a test fails.
#   tests/qemu/dax.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
build="${KVTIER_BUILD:-build}"
[ -f "$build/build.ninja" ] || cmake -S . -B "$build" -G Ninja >/dev/null
programs="kvtierd kvtierctl kvtier_cxl_test kvtier_e2e_cxl_test"
# shellcheck disable=SC2086
ninja -C "$build" $programs >/dev/null
# shellcheck disable=SC2086
KVTIER_GUEST_SECONDS="${KVTIER_GUEST_SECONDS:-900}" tests/qemu/guest.sh tests/qemu/dax_guest.sh \
  $(printf "$build/bin/%s " $programs)
