#!/bin/sh
# clang-tidy over every source of a build folder made by clang++.
#   tests/lint/tidy.sh BUILD_FOLDER JOBS
set -eu
cd "$(dirname "$0")/../.."
python3 -B -c '
import json, os, sys
root = os.getcwd()
for entry in json.load(open(sys.argv[1] + "/compile_commands.json")):
    path = os.path.relpath(os.path.join(entry["directory"], entry["file"]), root)
    if not path.startswith(("build", "..", "tests/")):
        print(path)
' "$1" | sort -u | xargs -r -n 1 -P "$2" clang-tidy -p "$1" --quiet
echo "clang-tidy: clean"
