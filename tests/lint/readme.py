#!/usr/bin/env python3
"""README tells the truth: its C++ is the example that is compiled, and the files that it names exist.

usage: readme.py [ROOT]
"""
import os
import re
import sys

import names
import tree

EXAMPLE = "tests/client/readme_example.cc"
CODE = re.compile(r"```cpp\n(.*?)```", re.DOTALL)
# `codecs/table.cc`; a name with "foo" in it stands for one that a reader would add.
FILE_NAME = re.compile(r"`((?:%s)/[\w./+-]*)`" % "|".join(sorted(name for name in names.TOP_LEVEL if "." not in name)))


def problems(root):
    text = tree.read(root, "README.md")
    blocks = CODE.findall(text)
    if len(blocks) != 1:
        yield f"README.md has {len(blocks)} blocks of C++, one is expected"
    elif not os.path.exists(os.path.join(root, EXAMPLE)) or blocks[0] != tree.read(root, EXAMPLE):
        yield f"README.md: the C++ is not that of {EXAMPLE}"
    for path in FILE_NAME.findall(text):
        if "foo" not in path and not os.path.exists(os.path.join(root, path)):
            yield f"README.md: {path} does not exist"


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else "."
    found = list(problems(root))
    for problem in found:
        print(problem)
    print(f"readme: {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
