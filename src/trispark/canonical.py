"""Canonical JSON and its hashes, by the node agent's own functions: a hash made here can be checked there.

Canonical JSON: keys sorted, separators "," and ":", no ASCII escaping, UTF-8, neither NaN nor infinity.
"""

from __future__ import annotations

from typing import Any, Final

from trispark.errors import TrisparkError
from trispark_node import canonical as node

AT_ITS_SOURCE: Final = "see where that value comes from, and mend it there"


def canonical_json(value: Any) -> str:
    """The canonical text of a JSON value. Raises TS-CANONICAL-JSON for what JSON, or UTF-8, cannot carry."""
    _require_string_keys(value, "$")
    try:
        return node.canonical_json(value).decode("utf-8")
    except (TypeError, ValueError) as error:
        raise TrisparkError(
            "TS-CANONICAL-JSON",
            "the value has no canonical JSON form",
            where="$",
            expected="JSON types and UTF-8 text",
            observed=str(error),
            remedy=AT_ITS_SOURCE,
        ) from None


def canonical_sha256(value: Any) -> str:
    """sha256 (64 hex digits) of the canonical JSON of `value`. Raises TS-CANONICAL-JSON."""
    return text_sha256(canonical_json(value))


def text_sha256(text: str) -> str:
    """sha256 (64 hex digits) of the UTF-8 bytes of a text, as of the file that the agent writes from it."""
    return node.sha256_hex(text.encode("utf-8"))


def generation_id(resolved: Any) -> str:
    """`g` and the first 16 hex digits of the hash of a resolved configuration. Raises TS-CANONICAL-JSON."""
    canonical_json(resolved)
    return node.generation_id(resolved)


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
                    remedy=AT_ITS_SOURCE,
                )
            _require_string_keys(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _require_string_keys(item, f"{where}[{index}]")
