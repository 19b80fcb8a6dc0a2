"""The adapter tree: Python and built libraries that are mounted into every rank's engine, with hashes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trispark.errors import TrisparkError

DIRECTORY: Final = "adapters"
SKIPPED: Final = frozenset({"__pycache__", "tests"})
BINARY_SUFFIXES: Final = (".so", ".fatbin")
"""Built libraries, also for a GPU; every other adapter is UTF-8 text, so that nothing gets in that nobody can read."""


def read_adapters(root: Path) -> dict[str, bytes]:
    """{path below adapters/: content}, sorted; without caches, tests and hidden files.

    Raises TS-ADAPTER-MISSING (no tree), TS-ADAPTER-LINK (a symbolic link) or TS-ADAPTER-TEXT (neither UTF-8
    nor a library).
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
    files: dict[str, bytes] = {}
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
        content = files[relative.as_posix()] = path.read_bytes()
        if path.suffix in BINARY_SUFFIXES:
            continue
        try:
            content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TrisparkError(
                "TS-ADAPTER-TEXT",
                "an adapter is not UTF-8 text",
                where=str(path),
                expected=f"UTF-8, or a library with the suffix {' or '.join(BINARY_SUFFIXES)}",
                observed=str(error),
                remedy="save it as UTF-8, or move it out of adapters/",
            ) from None
    return files


def carried(adapters: Mapping[str, bytes]) -> dict[str, Any]:
    """{path: text, or {"base64": ...} for a library}: how a request to the node agent holds them."""
    return {
        path: {"base64": base64.b64encode(content).decode("ascii")}
        if path.endswith(BINARY_SUFFIXES)
        else content.decode("utf-8")
        for path, content in adapters.items()
    }
