"""One hash for a tree of files: names, whether they can be run, and contents; nothing of times, owners or the place."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from trispark.errors import TrisparkError


def tree_hash(root: Path, without: str = "") -> str:
    """SHA-256 (hex) over `KIND\\0PATH\\0SHA256\\n` of every file in order of its path; KIND is f, x or l (a link).

    `without`: path of a file that does not count. Raises TS-IMAGES-TREE for what is neither a file nor a link nor a
    directory.
    """
    lines = []
    for folder, folders, files in os.walk(root, onerror=_raised):
        here = Path(folder)
        folders[:] = [name for name in folders if name != ".git" and not (here / name).is_symlink()]
        linked = [entry.name for entry in os.scandir(here) if entry.is_symlink()]
        for name in sorted({*files, *linked}):
            path = here / name
            if path.relative_to(root).as_posix() == without:
                continue
            lines.append(
                f"{_kind(path)}\0{path.relative_to(root).as_posix()}\0{_content(path)}\n".encode(
                    "utf-8", "surrogateescape"
                )
            )
    total = hashlib.sha256()
    for line in sorted(lines, key=lambda line: line.split(b"\0")[1]):
        total.update(line)
    return total.hexdigest()


def _raised(error: OSError) -> None:
    """What cannot be listed is not left out."""
    raise TrisparkError(
        "TS-IMAGES-TREE",
        "a tree cannot be read",
        where=str(error.filename),
        expected="a directory of yours",
        observed=error.strerror or str(error),
        remedy="make it readable",
    )


def _kind(path: Path) -> str:
    if path.is_symlink():
        return "l"
    if not path.is_file():
        raise TrisparkError(
            "TS-IMAGES-TREE",
            "a tree has something that is no file",
            where=str(path),
            expected="files, links and directories",
            observed="something else",
            remedy="remove it",
        )
    return "x" if path.stat().st_mode & 0o111 else "f"


def _content(path: Path) -> str:
    if path.is_symlink():
        return hashlib.sha256(os.fsencode(path.readlink())).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
