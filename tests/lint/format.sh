#!/bin/sh
# Fails when clang-format would change a source. To repair: clang-format -i FILE
set -eu
cd "$(dirname "$0")/../.."
python3 -B -c '
import sys
sys.path.insert(0, "tests/lint")
import tree
print("\n".join(path for path in tree.files(".") if path.endswith((".h", ".cc", ".cuh", ".cu"))))
' | xargs -r clang-format --dry-run -Werror --ferror-limit=1
echo "format: clean"
