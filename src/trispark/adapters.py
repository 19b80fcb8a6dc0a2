"""The adapter tree: Python that is mounted into every rank's engine, as text with hashes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trispark.errors import TrisparkError

DIRECTORY: Final = "adapters"
SKIPPED: Final = frozenset({"__pycache__", "tests"})


def read_adapters(root: Path) -> dict[str, str]:
    """{path below adapters/: text}, sorted; without caches, tests and hidden files.

    Raises TS-ADAPTER-MISSING (no tree), TS-ADAPTER-LINK (a symbolic link) or TS-ADAPTER-TEXT (not UTF-8).
    """
    base = root / DIRECTORY
    if not base.is_dir():
        raise TrisparkError(
            "TS-ADAPTER-MISSING",
            "there is no adapter tree",
            where=str(base),
            expected="a directory",
            observed="none",
            remedy="restore it from git",
        )
    files: dict[str, str] = {}
    for path in sorted(base.rglob("*")):
        relative = path.relative_to(base)
        if any(part in SKIPPED or part.startswith(".") for part in relative.parts) or path.suffix in (".pyc", ".pyo"):
            continue
        if path.is_symlink():
            raise TrisparkError(
                "TS-ADAPTER-LINK",
                "an adapter is a symbolic link",
                where=str(path),
                expected="a regular file",
                observed="a link",
                remedy="put the file itself there",
            )
        if path.is_dir():
            continue
        try:
            files[relative.as_posix()] = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise TrisparkError(
                "TS-ADAPTER-TEXT",
                "an adapter is not UTF-8 text",
                where=str(path),
                expected="UTF-8",
                observed=str(error),
                remedy="save it as UTF-8, or move it out of adapters/",
            ) from None
    return files
