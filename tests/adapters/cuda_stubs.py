"""Empty CUDA libraries beside the CUDA build of torch, so that its CPU part loads without gigabytes of the real ones.

    cuda_stubs.py SITE      the folder that torch is installed in

PyPI has no other build of torch. Its libraries name CUDA's at load time and call none of them as long as no device is asked
for, but for the CUDA runtime, which is small and real (nvidia-cuda-runtime). Each function here answers 1, an error everywhere
in CUDA. Needs a C compiler and binutils."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

REAL = "libcudart.so.13"
SYSTEM = re.compile(r"(lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so|ld-linux)")
CUDA_NAME = re.compile(r"(cu[A-Z]|cu(blas|dnn|fft|file|pti|rand|solver|sparse)|nccl|nvrtc|nvshmem|nvtx)")


def said_by(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def wanted_versions(library):
    """Version name: the library that it is wanted of."""
    versions, owner = {}, None
    for line in said_by("readelf", "-VW", library).splitlines():
        if found := re.search(r"Version: 1\s+File: (\S+)", line):
            owner = found[1]
        elif (found := re.search(r"Name: (\S+)\s+Flags: .*Version: \d+", line)) and owner:
            versions[found[1]] = owner
    return versions


def symbols(library):
    """(defined names, [(undefined name, library or None, version)])"""
    versions, defined, undefined = wanted_versions(library), set(), []
    for line in said_by("nm", "-D", library).splitlines():
        parts = line.split()
        name, _, version = parts[-1].partition("@")
        version = version.strip("@")
        if len(parts) == 2:
            undefined.append((name, versions.get(version), version))
        else:
            defined.add(name)
    return defined, undefined


def make(target, by_version):
    with tempfile.TemporaryDirectory() as folder:
        source, script = pathlib.Path(folder, "stub.c"), pathlib.Path(folder, "stub.map")
        names = sorted({name for names in by_version.values() for name in names})
        source.write_text("int kvtier_stub;\n" + "".join(f"int {name}(void) {{ return 1; }}\n" for name in names))
        script.write_text("".join(f"{version} {{ global: {'; '.join(sorted(names))}; }};\n"
                                  for version, names in by_version.items() if version))
        linked = [f"-Wl,--version-script={script}"] if script.stat().st_size else []
        subprocess.run(["cc", "-shared", "-fPIC", "-fno-builtin", "-w", source, "-o", target, f"-Wl,-soname,{target.name}",
                        *linked], check=True)


def main(site):
    lib = site / "torch/lib"
    for name in [path for path in lib.iterdir() if path.name.startswith("libcu") and path.name != REAL]:
        name.unlink()  # of an earlier run
    real = next(site.glob(f"nvidia/**/{REAL}"))
    (lib / REAL).unlink(missing_ok=True)
    (lib / REAL).symlink_to(os.path.relpath(real, lib))  # the folder may be moved
    libraries = [path for path in lib.glob("*.so*") if path.name != REAL] + list((site / "torch").glob("_C*.so"))
    needed, defined, undefined = set(), set(), []
    for library in libraries:
        needed |= set(re.findall(r"NEEDED.*\[(.*)\]", said_by("readelf", "-dW", library)))
        ours, theirs = symbols(library)
        defined |= ours
        undefined += theirs
    present = {path.name for path in lib.iterdir()}
    missing = sorted(name for name in needed - present if not SYSTEM.match(name))
    stubs = {name: {} for name in missing}
    for name, owner, version in undefined:
        if name in defined:
            continue
        if owner in stubs:
            stubs[owner].setdefault(version, set()).add(name)
        elif owner is None and not version and CUDA_NAME.match(name):
            stubs[missing[0]].setdefault("", set()).add(name)
    for name, by_version in stubs.items():
        make(lib / name, by_version)
    print(f"{len(stubs)} stubs in {lib}")


main(pathlib.Path(sys.argv[1]))
