#!/bin/bash
# Tests the adapters with the real engines, and the Python package with torch: fetches them once (fetch.sh: 1.2 GB), then runs
# each test file in a process of its own against a real daemon.
#   tests/adapters/run.sh [PYTEST ARGUMENTS]      e.g. tests/adapters/run.sh -k vllm
# Needs a build: $KVTIER_BUILD, else build/. Took 11 minutes on two busy cores, after the fetch.
set -euo pipefail
cd "$(dirname "$0")/../.."

tests/adapters/fetch.sh
PYTHONPATH="$(tests/adapters/fetch.sh folder)"
export PYTHONPATH KVTIER_BUILD="${KVTIER_BUILD:-$PWD/build}"
failed=0
for file in tests/adapters/*_test.py; do
  echo "== $(printf '%4d' $SECONDS) s  $file"
  status=0
  timeout 900 /usr/bin/python3 -B -m pytest -q -p no:cacheprovider -W ignore "$@" "$file" </dev/null || status=$?
  # 5: nothing there is of the chosen kind.
  [ "$status" = 0 ] || { [ "$status" = 5 ] && [ $# -gt 0 ]; } || failed=1
done
exit "$failed"
