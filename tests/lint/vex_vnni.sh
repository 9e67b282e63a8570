#!/bin/sh
# Highway's AVX3_DL target lets the compiler use AVX-VNNI, which some AVX-512 processors lack: the same dot product in
# another encoding, an illegal instruction there.
#   tests/lint/vex_vnni.sh LIBRARY
set -eu
listing=$(mktemp)
trap 'rm -f "$listing"' EXIT
objdump -d --no-show-raw-insn "$1" | grep vpdpbusd >"$listing" || { echo "no vpdpbusd in $1: what is checked here?"; exit 1; }
if grep '{vex}' "$listing"; then
  echo "AVX-VNNI instructions in $1"
  exit 1
fi
echo "$(wc -l <"$listing") dot products, none of AVX-VNNI"
