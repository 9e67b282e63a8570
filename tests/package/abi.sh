#!/bin/sh
# The ABI of libkvtier against what version 1 was when it was frozen: functions may be added, and fields at the end of
# structs that have struct_size; anything else breaks engines that are built already.
#   abi.sh LIBRARY             checks
#   abi.sh --freeze LIBRARY    takes the library for the reference: after additions that are right
set -eu
cd "$(dirname "$0")/../.."
reference=tests/package/libkvtier.1.abi
freeze=no
[ "${1:-}" != --freeze ] || { freeze=yes; shift; }
[ $# = 1 ] || { echo "usage: $0 [--freeze] LIBRARY" >&2; exit 2; }

# What the header says of each function that the library exports, as pointers in a library of nothing else: the real one
# is C++ inside, and its debug information would be the whole of it.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
{
  echo '#include <kvtier/kvtier.h>'
  nm -D --defined-only "$1" |
    sed -n 's/.* \(kvtier_[a-z0-9_]*\)@@KVTIER_1$/__typeof__(\1)* const abi_of_\1 = \1;/p'
} >"$folder/abi.c"
include="$PWD/client/include"
(cd "$folder" && cc -std=gnu11 -g -shared -fPIC -Wall -Werror -fdebug-prefix-map="$folder=." \
  -fdebug-prefix-map="$include=include" -I "$include" abi.c -o libkvtier-abi.so)
abidw --no-show-locs --no-comp-dir-path --no-corpus-path --no-elf-needed "$folder/libkvtier-abi.so" >"$folder/now.abi"

if [ "$freeze" = yes ]; then
  cp "$folder/now.abi" "$reference"
elif ! abidiff --no-added-syms "$reference" "$folder/now.abi"; then
  echo "error: the ABI has changed; when each change is an addition as above, run" >&2
  echo "  tests/package/abi.sh --freeze build/lib/libkvtier.so" >&2
  exit 1
fi
