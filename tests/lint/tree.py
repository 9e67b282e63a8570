"""The files of the repository: what git tracks or would track, or, outside a git checkout, what lies in the folder."""
import os
import subprocess


def files(root):
    """Paths relative to root, sorted."""
    if os.path.exists(os.path.join(root, ".git")):
        listing = subprocess.run(
            ["git", "-c", "safe.directory=*", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            check=True, stdout=subprocess.PIPE).stdout.decode()
        found = {path for path in listing.split("\0") if path and os.path.exists(os.path.join(root, path))}
        return sorted(found)
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith("build") and name != "__pycache__"]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(found)


def read(root, path):
    """Text of a file; empty for a binary one."""
    with open(os.path.join(root, path), "rb") as source:
        data = source.read()
    return "" if b"\0" in data else data.decode("utf-8", errors="replace")
