"""A rank's file of kernel tactics and its sidecar, which says for which launch it was tuned. No engine needed.

Only this rank's own two files are ever deleted: `rank_*.json` and `rank_*.launch` in the folder of the launch.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trispark_adapters.autotune_launch import Launch
from trispark_hooks.registry import HookError


@dataclass(frozen=True)
class Kept:
    """The cache at `path` as a launch may use it."""

    path: Path
    launch: Launch

    @property
    def sidecar(self) -> Path:
        """One line: sha256 of the launch, and how many tunings of it were saved here."""
        return self.path.with_suffix(".launch")

    @property
    def tunings(self) -> int:
        """How many tunings of this launch the cache holds, 0 where it is of another one or not there."""
        own, _, count = _text(self.sidecar).partition(" ")
        known = self.launch.matches(own) and count.isascii() and count.isdigit() and self.path.is_file()
        return int(count) if known else 0

    @property
    def name(self) -> str:
        """Folder and file, for the log."""
        return f"{self.path.parent.name}/{self.path.name}"

    def prepare(self) -> bool:
        """Before tuning: whether the cache may be used. One of another or an unknown launch is deleted."""
        _require_own(self.path)
        if not self.path.is_file():
            self.sidecar.unlink(missing_ok=True)
            return False
        if self.tunings and _document(self.path) is not None:
            return True
        self.path.unlink(missing_ok=True)
        self.sidecar.unlink(missing_ok=True)
        return False

    def digest(self, env: Mapping[str, Any]) -> str:
        """What must be equal on all ranks before any of them loads: that there is something loadable, for which
        launch, under which `env` of the tuner, and after how many tunings. "" where there is nothing; the tactics
        themselves do not count, since each rank times its own experts. The number does: a rank that ended before it
        saved lacks what the others have, would time it alone, and wait for them in a collective.
        """
        document, tunings = _document(self.path), self.tunings
        if document is None or not tunings:
            return ""
        if document.get("_metadata") != dict(env):
            return ""  # the tuner would ignore the file
        content = {"launch": self.launch.common, "env": dict(env), "tunings": tunings}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def content(self) -> str:
        """Hash of the file; "" without one."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest() if self.path.is_file() else ""

    def save(self, tunings: int = 1) -> bool:
        """After tuning: write the sidecar. False where there is no file, or no launch to name."""
        if not self.launch.known or not self.path.is_file():
            self.sidecar.unlink(missing_ok=True)
            return False
        partial = self.sidecar.with_name(self.sidecar.name + ".partial")
        partial.write_text(f"{self.launch.own} {tunings}\n", encoding="ascii")
        partial.replace(self.sidecar)
        return True


def folder_of(path: Path, launch: Launch) -> Path:
    """The engine's path, in a folder of the launch: two launches with one key of the engine do not share a file."""
    return path.parent / launch.name / path.name if launch.known else path


def _require_own(path: Path) -> None:
    if not (path.name.startswith("rank_") and path.suffix == ".json"):
        raise HookError(
            f"TS-ADAPTER-AUTOTUNE-FILE: the engine keeps tactics in a file of another kind [where: {path}] expected: "
            f"rank_*.json; observed: {path.name}; remedy: use DSV41_AUTOTUNE_KEEP=0 with this engine build"
        )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _document(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
