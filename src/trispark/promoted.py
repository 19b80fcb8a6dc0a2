"""The site's own baseline as the nodes and the controller hold it.

The nodes hold the truth (the agent's verb `baseline-show`, part of `status`), the controller a copy in
`.trispark/<site>/baseline.json` for what is done offline. How a verdict becomes it: promote.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trispark.allowlist import Value
from trispark.catalog import Catalog
from trispark.errors import TrisparkError
from trispark_node.plain_json import parse_json

SCHEMA_VERSION: Final = 1
SHIPPED: Final = "shipped"
"""The name of the baseline that experiments/baseline.yml describes, where nothing was promoted."""
Answers = Mapping[str, Mapping[str, Any] | None]


@dataclass(frozen=True)
class Promoted:
    """`settings` differ from the shipped baseline; `record` is the trial that decided so, with its hash."""

    settings: Mapping[str, Any]
    record: str
    record_hash: str
    time: str

    @classmethod
    def of(cls, value: object, where: str, remedy: str) -> Promoted:
        """From its JSON form. Raises TS-BASELINE-READ."""
        if not isinstance(value, Mapping):
            raise _unreadable(where, type(value).__name__, remedy)
        try:
            if value["schema_version"] != SCHEMA_VERSION or set(value) != {*_TEXTS, "schema_version", "settings"}:
                raise ValueError(f"schema_version {value['schema_version']}")
            texts = {name: value[name] for name in _TEXTS}
            settings = dict(value["settings"])
            if not all(isinstance(text, str) for text in texts.values()):
                raise ValueError("a text is needed")
        except (KeyError, TypeError, ValueError) as error:
            raise _unreadable(where, f"{type(error).__name__}: {error}", remedy) from None
        return cls(settings, **texts)

    def as_dict(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "settings": dict(self.settings),
            "record": self.record,
            "record_hash": self.record_hash,
            "time": self.time,
        }

    def typed(self, catalog: Catalog) -> dict[str, Value]:
        """The settings by their declared types. Raises TS-ENV-*."""
        where = f"the baseline promoted by {self.record}"
        return {
            name: catalog.allowlist.require(name, where).check(value, where)
            for name, value in sorted(self.settings.items())
        }


_TEXTS: Final = ("record", "record_hash", "time")
REVERT: Final = "go back to the shipped baseline (promote.yml -e revert=true), then promote again"
_REMOVE: Final = "remove this copy, the nodes hold the truth"


def settings_of(promoted: Promoted | None, catalog: Catalog) -> dict[str, Value]:
    """What the resolver takes as `promoted`; nothing for the shipped baseline."""
    return {} if promoted is None else promoted.typed(catalog)


def on_nodes(statuses: Answers) -> Promoted | None:
    """What every node holds. `statuses`: {node: answer of `status`}. Raises TS-BASELINE-DIFFERS naming the nodes."""
    held = {node: held_by(node, status) for node, status in sorted(statuses.items()) if status}
    first = next(iter(held.values()), None)
    if any(each != first for each in held.values()):
        raise TrisparkError(
            "TS-BASELINE-DIFFERS",
            "the nodes do not hold the same promoted baseline",
            where=", ".join(held),
            expected="one, or the shipped one on all",
            observed=", ".join(f"{node} {name_of(each)}" for node, each in held.items()),
            remedy="promote.yml with -e record=ID of the one that is meant completes it, -e revert=true undoes both",
        )
    return first


def name_of(promoted: Promoted | None) -> str:
    """The record's id, or `shipped`."""
    return SHIPPED if promoted is None else promoted.record


def held_by(node: str, status: Mapping[str, Any]) -> Promoted | None:
    """What one node says. Raises TS-BASELINE-READ."""
    value = status.get("baseline")
    return None if value is None else Promoted.of(value, f"status of {node}", REVERT)


def cache_file(root: Path, site: str) -> Path:
    """The controller's copy."""
    return root / ".trispark" / site / "baseline.json"


def cached(root: Path, site: str) -> Promoted | None:
    """The controller's copy; None for the shipped baseline. Raises TS-BASELINE-READ."""
    path = cache_file(root, site)
    try:
        value = parse_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _unreadable(str(path), f"{type(error).__name__}: {error}", _REMOVE) from None
    return Promoted.of(value, str(path), _REMOVE)


def write_cache(root: Path, site: str, promoted: Promoted | None) -> bool:
    """Make the copy say what the nodes say; whether it said something else before."""
    path = cache_file(root, site)
    try:
        if cached(root, site) == promoted:
            return False
    except TrisparkError:
        pass  # a copy that cannot be read is replaced
    if promoted is None:
        path.unlink(missing_ok=True)
        return True
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".tmp")
    with partial.open("w", encoding="utf-8") as file:
        file.write(json.dumps(promoted.as_dict(), sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return True


def _unreadable(where: str, observed: str, remedy: str) -> TrisparkError:
    return TrisparkError(
        "TS-BASELINE-READ",
        "a promoted baseline cannot be read",
        where=where,
        expected="schema_version 1, settings, record, record_hash and time",
        observed=observed[:200],
        remedy=remedy,
    )
