"""Files of somebody else in the folders of a run and beside its copies: each session has to leave them as they are."""

import hashlib
import os
import stat
from pathlib import Path

OLD = 1_000_000_000.5
"""The time of modification of planted files, in seconds since 1970."""

HIDDEN = (
    b".git/HEAD", b".git/objects/ab/cdef", b".env", b".ssh/id_ed25519", b".\xff\xfe", b".writing-00000008-1/model",
    b".checkpoints/update-00000004/manifest.json", b".plan.json", b".plan.json.swp", b".update-4.json.1~",
)  # fmt: skip
VISIBLE = (
    b"notes.txt", b"caf\xe9.txt", b"two\nlines", b"old/plan.json", b"old/checkpoints/update-00000004/model.safetensors",
    b"update-00000004/state.json", b"checkpoints.old/update-00000004/manifest.json", b"plan.json.bak", b"best.txt",
    b"copies/objects/" + 64 * b"0", b"copies/commits/00000001-update-00000004-ab.json",
)  # fmt: skip
IN_CHECKPOINTS = (b"checkpoints/notes.txt", b"checkpoints/.env", b"checkpoints/update-4/x", b"checkpoints/.git/HEAD")
LINKS = (b".link", b"link")


def plant(folder, outside, generator, *, names):
    """Write a few files and a link with some of these names into `folder`; return the paths of all that is new."""
    chosen = generator.sample(names, k=min(len(names), generator.randint(2, 4)))
    paths = []
    for name in chosen:
        path = folder / os.fsdecode(name)
        if path.is_symlink() or path.exists():
            continue
        for parent in reversed(path.parents):
            if parent.is_relative_to(folder) and not parent.exists():
                parent.mkdir()
                paths.append(parent)
        path.write_bytes(generator.randbytes(generator.choice((0, 1, 300))))
        path.chmod(generator.choice((0o600, 0o444, 0o755)))
        paths.append(path)
    link = folder / os.fsdecode(generator.choice([name for name in LINKS if name[:1] == chosen[0][:1]] or LINKS[:1]))
    if not link.is_symlink():
        link.symlink_to(generator.choice((outside, outside / "file", folder / "nothing")))
        paths.append(link)
    for path in reversed(paths):
        os.utime(path, (OLD, OLD), follow_symlinks=False)
    return paths


def fact(path):
    """Return what must not change of a file, a link or a folder: its kind, mode, time of modification and content."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        content = os.fsdecode(path.readlink())
    elif stat.S_ISDIR(status.st_mode):
        content = ""
    else:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    return [stat.filemode(status.st_mode), status.st_mtime_ns, content]


def outside_of_runs(folder):
    """Return a folder to which links in runs point, with a file in it."""
    outside = folder / "outside"
    outside.mkdir(parents=True, exist_ok=True)
    (outside / "file").write_text("this file belongs to somebody else")
    return outside


def changes(planted):
    """Yield what has changed of the files of `planted`, a table of their facts by their paths."""
    for name, before in planted.items():
        path = Path(name)
        try:
            after = fact(path)
        except OSError as error:
            yield f"{name!r} is gone: {error.strerror}"
            continue
        if after != before:
            yield f"{name!r} was {before} and is {after}"
