#!/bin/bash
# Brings vLLM (its CPU build), SGLang, LMCache, transformers and torch into a cache folder, from PyPI, every wheel checked
# by SHA-256 (requirements.txt). What is there already is kept.
#   tests/adapters/fetch.sh           fetches
#   tests/adapters/fetch.sh folder    prints the folder of the packages, for PYTHONPATH, and does nothing
# The folder is in $KVTIER_CACHE, else ~/.cache/kvtier. Takes 1.2 GB of downloads, which are not kept, 3.5 GB of disk and about
# 4 minutes. Needs CPython 3.11 on x86-64, as Debian 12 has, a C compiler, binutils and pip.
set -euo pipefail
cd "$(dirname "$0")"

python=/usr/bin/python3
cache="${KVTIER_CACHE:-$HOME/.cache/kvtier}"
stamp="$(cat requirements.txt cuda_stubs.py | sha256sum | cut -c 1-12)"
folder="$cache/engines-$stamp"

step() {
  echo "== $(printf '%4d' $SECONDS) s  $*"
}

fail() {
  echo "error: $*" >&2
  exit 1
}

fetch() {
  local try partial="$folder.partial"
  rm -rf "$partial"
  step "install $(grep -c == requirements.txt) packages (log: $folder.log)"
  for try in 1 2 3; do
    # TMPDIR: downloads are larger than some /tmp.
    mkdir -p "$partial/tmp"
    if TMPDIR="$partial/tmp" "$python" -m pip install --quiet --disable-pip-version-check --no-input --no-cache-dir --no-deps \
      --no-compile --only-binary :all: --require-hashes --target "$partial/site" -r requirements.txt >"$folder.log" 2>&1; then
      break
    fi
    [ "$try" != 3 ] || { tail -n 5 "$folder.log" >&2; fail "pip could not install them"; }
    rm -rf "$partial"
    sleep "$try"
  done
  rm -rf "$partial/tmp"
  step "stubs of CUDA's libraries"
  "$python" -B cuda_stubs.py "$partial/site"
  PYTHONPATH="$partial/site" "$python" -c 'import torch; torch.ones(2, 2) @ torch.ones(2, 2)' || fail "torch does not run"
  mv "$partial/site" "$folder"
  rm -rf "$partial" "$folder.log"
}

main() {
  if [ "$*" = folder ]; then
    echo "$folder"
    return
  fi
  [ $# = 0 ] || { echo "usage: $0 [folder]" >&2; exit 2; }
  "$python" -c 'import platform, sys; sys.exit(sys.version_info[:2] != (3, 11) or platform.machine() != "x86_64")' ||
    fail "the wheels are for CPython 3.11 on x86-64"
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  flock -w 3600 9 || fail "another download on $cache did not end within an hour"
  [ -d "$folder" ] || fetch
  step "engines $folder"
}

main "$@"
