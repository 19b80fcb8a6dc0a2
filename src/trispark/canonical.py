"""Canonical JSON and the hashes that are made from it.

Canonical JSON: keys sorted, separators "," and ":", no ASCII escaping, UTF-8, neither NaN nor infinity. The node agent
computes the same bytes from the same object, so a hash made here can be checked there.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from trispark.errors import TrisparkError


def canonical_json(value: Any) -> str:
    """The canonical text of a JSON value. Raises TS-CANONICAL-JSON for what JSON cannot carry."""
    _require_string_keys(value, "$")
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TrisparkError(
            "TS-CANONICAL-JSON", "the value has no canonical JSON form", expected="JSON types only", observed=str(error)
        ) from None


def canonical_sha256(value: Any) -> str:
    """sha256 (64 hex digits) of the canonical JSON of `value`."""
    try:
        data = canonical_json(value).encode("utf-8")
    except UnicodeEncodeError:
        raise TrisparkError(
            "TS-CANONICAL-JSON", "the value has no canonical JSON form", expected="UTF-8", observed="a lone surrogate"
        ) from None
    return hashlib.sha256(data).hexdigest()


def text_sha256(text: str) -> str:
    """sha256 (64 hex digits) of the UTF-8 bytes of a text, as of the file that the agent writes from it."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def generation_id(resolved: Any) -> str:
    """`g` and the first 16 hex digits of the hash of a resolved configuration."""
    return "g" + canonical_sha256(resolved)[:16]


def _require_string_keys(value: Any, where: str) -> None:
    """json.dumps would turn 1 and "1" into the same key, so other keys than strings are refused."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TrisparkError(
                    "TS-CANONICAL-JSON",
                    "a key is not a string",
                    where=where,
                    expected="string keys",
                    observed=repr(key),
                )
            _require_string_keys(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _require_string_keys(item, f"{where}[{index}]")
