"""What of the controller belongs into a support bundle: the site's files, and the newest of what is kept there."""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from trispark import __version__
from trispark.errors import TrisparkError
from trispark.project import project_state
from trispark.records import RecordCache
from trispark_node import PROTOCOL

RUNS: Final = 8
WALKS: Final = 5
TAIL_BYTES: Final = 131072
PACKAGES: Final = ("ansible-core", "ansible-runner", "docker", "numpy", "pydantic", "typer")
GIT_S: Final = 3.0
_STAMP: Final = re.compile(r"[a-z]?(\d{8}T\d{6}Z)")
_CUT: Final = "[trispark: {} bytes left out]\n"


def controller_texts(root: Path, site: str) -> Iterator[tuple[str, str]]:
    """(name in the bundle, text). What cannot be read is a text that says so; nothing is raised."""
    yield "versions.json", _json(_versions(root))
    for path in sorted((root / "inventory" / site).rglob("*.yml")):
        yield f"site/{path.relative_to(root / 'inventory' / site).as_posix()}", tail(path)
    state, own = root / ".trispark", root / ".trispark" / site
    yield "controller/plans.txt", "".join(f"{path.name}\n" for path in sorted((own / "plans").glob("*")))
    yield "controller/records.json", _json(_records(own / "records"))
    for name in ("baseline.json", "noise.json"):
        if (own / name).is_file():
            yield f"controller/{name}", tail(own / name)
    for path in _newest(own / "walks", WALKS) + _newest(own / "campaigns", WALKS):
        for file in sorted(path.glob("*.json*")):
            yield f"controller/{path.parent.name}/{path.name}/{file.name}", tail(file)
    for path in _newest(state / "runs", RUNS):
        for name in ("command", "rc", "status", "stdout", "stderr", "pid"):
            if (path / name).is_file():
                yield f"controller/runs/{path.name}/{name}", tail(path / name)
    yield "controller/kept.json", _json(_kept(state, own))


def tail(path: Path, most: int = TAIL_BYTES) -> str:
    """The end of a file from a line's beginning; what was left out is said in the first line."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(0, size - most))
            text = file.read(most).decode("utf-8", "replace")
    except OSError as error:
        return f"[trispark: not readable: {error.strerror or error}]\n"
    if size <= most:
        return text
    rest = text.partition("\n")[2]
    return _CUT.format(size - len(rest.encode("utf-8", "replace"))) + rest


def _versions(root: Path) -> dict[str, Any]:
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "trispark": __version__,
        "protocol": PROTOCOL,
        "project": project_state(root, __version__, GIT_S).recorded(),
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "packages": found,
    }


def _records(directory: Path) -> dict[str, Any]:
    """Heads of the newest records of the controller's copy, and whether its chain is whole."""
    cache = RecordCache(directory)
    try:
        head = cache.verify()
        newest = [{key: record.get(key) for key in ("seq", "id", "kind", "outcome")} for record in cache.list()[-20:]]
    except (TrisparkError, OSError) as error:
        return {"problem": str(error)}
    return {"head": head, "newest": newest}


def _kept(state: Path, own: Path) -> dict[str, Any]:
    """How much of what lies on the controller: names and numbers, no content."""
    found: dict[str, Any] = {}
    for path in sorted([*state.glob("*"), *own.glob("*")]):
        files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
        try:
            found[path.relative_to(state).as_posix()] = {
                "files": len(files),
                "bytes": sum(each.lstat().st_size for each in files),
            }
        except OSError as error:
            found[path.relative_to(state).as_posix()] = {"problem": error.strerror or str(error)}
    return found


def _newest(directory: Path, count: int) -> list[Path]:
    """Directories below it, the newest last: by the time in their name; before them the others, by their change."""
    found = [path for path in directory.glob("*") if path.is_dir()] if directory.is_dir() else []

    def age(path: Path) -> tuple[bool, str, float]:
        stamp = _STAMP.match(path.name)
        return (stamp is not None, stamp[1] if stamp else "", path.stat().st_mtime)

    return sorted(found, key=age)[-count:]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
