"""The manifest between preparation and playbook: `.trispark/lab/prepared.json`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from trispark.errors import TrisparkError
from trispark.lab.files import write_atomic

FORMAT: Final = 1
BUILD_ORDER: Final = ("lab-node", "lab-deps", "lab-engine", "lab-engine-canary", "bench")
"""Those after lab-deps are built on it."""


@dataclass(frozen=True)
class Image:
    """One image that the playbook builds: `context` is a directory with a Dockerfile, `base` its build argument."""

    name: str
    reference: str
    content: str
    context: str
    base: str
    pushed: bool


@dataclass(frozen=True)
class Prepared:
    """What the playbook needs; paths are absolute, `keys` is a hash over the public keys of the lab."""

    images: dict[str, Image]
    bases: dict[str, str]
    checkpoint: str
    agent: str
    agent_sha256: str
    keys: str


def save_prepared(path: Path, prepared: Prepared) -> None:
    """Write the manifest atomically."""
    write_atomic(path, json.dumps({"format": FORMAT, **asdict(prepared)}, indent=1, sort_keys=True) + "\n", mode=0o644)


def load_prepared(path: Path) -> Prepared:
    """Read the manifest; raises TS-LAB-UNPREPARED when it is absent, of another format or points to what is gone."""
    try:
        loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if loaded.pop("format") != FORMAT:
            raise ValueError("another format")
        loaded["images"] = {name: Image(**image) for name, image in loaded["images"].items()}
        prepared = Prepared(**loaded)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unprepared(path, str(error)) from error
    for needed in (prepared.checkpoint, prepared.agent, *(image.context for image in prepared.images.values())):
        if not Path(needed).exists():
            raise _unprepared(path, f"{needed} is gone")
    return prepared


def _unprepared(path: Path, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-LAB-UNPREPARED",
        "the lab's inputs are not prepared",
        where=str(path),
        expected="what the lab is made of, as it was prepared",
        observed=observed,
        remedy="./trispark lab up (it prepares, then runs this playbook)",
    )
