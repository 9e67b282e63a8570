#!/usr/bin/env python3
"""Fails when a source includes a floor above its own, or a library that belongs to another part.

usage: layers.py [ROOT]
"""
import re
import sys

import tree

# Folder or file prefix: (floor, prefixes of what it may include besides its own). The longest prefix decides whose a
# file is.
FLOORS = {
    "tiers/base/": (0, []),
    "monitoring/metrics": (0, []),
    "kernels/": (0, ["tiers/base/"]),
    "codecs/": (1, ["kernels/", "tiers/base/"]),
    "tiers/": (2, ["codecs/", "kernels/", "tiers/base/", "monitoring/metrics"]),
    "daemon/policy/": (3, ["tiers/", "codecs/", "kernels/", "tiers/base/", "monitoring/metrics"]),
    "daemon/engine/": (4, ["daemon/policy/", "tiers/", "codecs/", "kernels/", "tiers/base/", "monitoring/metrics"]),
    "daemon/service/": (5, ["daemon/engine/", "daemon/policy/", "tiers/", "codecs/", "kernels/", "tiers/base/",
                            "monitoring/metrics", "proto/"]),
    "proto/": (4, []),
    # The roof. The library lives in other people's processes: nothing of the engine or the service in it.
    "client/": (6, ["daemon/policy/", "tiers/", "codecs/", "kernels/", "tiers/base/", "proto/"]),
    # Engines use kvtier as anybody would.
    "client/engines/": (7, ["client/include/", "tiers/base/"]),
    "monitoring/exporter": (6, ["monitoring/metrics", "tiers/base/"]),
    "daemon/": (7, ["daemon/service/", "daemon/engine/", "daemon/policy/", "tiers/", "codecs/", "kernels/",
                    "tiers/base/", "monitoring/"]),
    # Programs that use kvtier as any engine would.
    "deploy/": (7, ["client/include/", "kernels/", "tiers/base/"]),
    "tests/": (8, [""]),
}

# Libraries that only one part may know: pattern of the included name -> prefixes of the files that may include it.
LIBRARIES = {
    r"(grpc|grpcpp|google/protobuf)/": ["daemon/service/", "client/", "daemon/main.cc", "tests/"],
    r"rocksdb/": ["tiers/cold_index", "tests/"],
    r"prometheus/": ["monitoring/exporter", "tests/"],
    r"liburing\.h": ["tiers/base/", "tests/"],
    r"(libpmem2|numa|numaif)\.h": ["tiers/cxl_mapping", "tests/"],
    r"(isa-l/|isa-l\.h|crc\.h)": ["tiers/crc32c.cc", "tests/"],
    r"openssl/": ["daemon/policy/", "daemon/service/", "client/engines/", "tests/"],
    r"(llama|ggml[\w-]*|gguf)\.h": ["client/engines/llamacpp/", "tests/"],
    r"(httplib\.h|nlohmann/)": ["client/engines/", "tests/"],
    r"CLI/": ["daemon/", "client/ctl/", "client/engines/", "tests/bench/", "tests/eval/"],
    r"toml\+\+/": ["daemon/config", "tests/"],
    r"(spdlog|fmt)/": ["daemon/service/", "daemon/", "client/ctl/", "monitoring/exporter", "tests/"],
    r"(cuda|nv)\w*\.h": ["kernels/", "tiers/cuda/", "tests/"],
    r"hwy/": ["kernels/", "codecs/", "tests/"],
    r"(gtest|gmock|benchmark)/": ["tests/"],
    r"boost/": ["tests/support/teams/"],
    # Its own std-like types would leak into whoever includes us.
    r"absl/": ["daemon/policy/", "daemon/engine/", "daemon/service/", "client/src/", "tests/"],
}

# Pure parts: neither threads nor I/O of their own.
PURE = ["codecs/", "daemon/policy/"]
IMPURE = r"(thread|mutex|shared_mutex|condition_variable|future|fstream|filesystem|unistd\.h|fcntl\.h|sys/\w+\.h)"

INCLUDE_FOLDERS = ["", "client/include/"]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = (".h", ".cc", ".cuh", ".cu", ".c")


def part_of(path):
    prefixes = [prefix for prefix in FLOORS if path.startswith(prefix)]
    return max(prefixes, key=len) if prefixes else None


def resolve(name, files):
    """Path in the repository of an included name, None when it is another project's."""
    if re.fullmatch(r"proto/\w+(\.grpc)?\.pb\.h", name):
        return name
    for folder in INCLUDE_FOLDERS:
        if folder + name in files:
            return folder + name
    return None


def edge_problem(source, target):
    own, other = part_of(source), part_of(target)
    if own == other:
        return None
    if own is None or other is None:
        return f"{source if own is None else target} belongs to no floor"
    if target.startswith(tuple(FLOORS[own][1])):
        return None
    return f"{own} (floor {FLOORS[own][0]}) may not include {other} (floor {FLOORS[other][0]})"


def library_problem(source, name):
    for pattern, owners in LIBRARIES.items():
        if re.match(pattern, name) and not source.startswith(tuple(owners)):
            return f"only {', '.join(owners)} may include <{name}>"
    if source.startswith(tuple(PURE)) and re.fullmatch(IMPURE, name):
        return f"{part_of(source)} has no threads and no I/O, so no <{name}>"
    return None


def problems(root):
    files = set(tree.files(root))
    for source in sorted(path for path in files if path.endswith(SOURCES)):
        if part_of(source) is None:
            yield f"{source}: belongs to no floor"
        for number, line in enumerate(tree.read(root, source).splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            quote, name = match.groups()
            target = resolve(name, files)
            problem = library_problem(source, name) if target is None else edge_problem(source, target)
            if target is None and problem is None and quote == '"' and not foreign(source, name):
                problem = f'"{name}" is not in the repository: quotes are for paths from its root'
            if problem:
                yield f"{source}:{number}: {problem}"


def foreign(source, name):
    """Whether a quoted name is another project's, or made by protoc for a test."""
    return any(re.match(pattern, name) for pattern in LIBRARIES) or source.startswith("tests/") and name.endswith(".pb.h")


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else "."
    found = list(problems(root))
    for problem in found:
        print(problem)
    print(f"layers: {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
