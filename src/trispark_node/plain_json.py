"""JSON of others, read strictly: UTF-8 without a byte order mark, bounded depth, text that can be written again.

Every fault is a ValueError, so that a reader of a damaged file has one thing to catch.
"""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 100
"""Objects and lists inside each other; what the project writes has at most about ten."""
MAX_DIGITS = 40
"""Of a whole number: reading a long one takes time that grows with its square."""


def parse_json(data: bytes | str, *, any_text: bool = False) -> Any:
    """The value. Raises ValueError for what is no JSON, no UTF-8, too deep, or, without `any_text`, holds half of a
    surrogate pair, which UTF-8 cannot hold."""
    text = data if isinstance(data, str) else data.decode("utf-8")
    try:
        value = json.loads(text, parse_int=whole_number)
    except RecursionError:
        raise ValueError(f"more than {MAX_DEPTH} levels of objects and lists") from None
    if not _plain(text):
        _check(value, any_text)
    return value


def _plain(text: str) -> bool:
    """Whether its characters alone say that `_check` would find nothing: most of what is read is of this kind."""
    return text.isascii() and "\\u" not in text and text.count("{") + text.count("[") <= MAX_DEPTH


def whole_number(literal: str) -> int:
    """`int` of a JSON literal of a bounded length."""
    if len(literal) > MAX_DIGITS:
        raise ValueError(f"a whole number of {len(literal)} digits")
    return int(literal)


def _check(value: Any, any_text: bool) -> None:
    """Level by level, without recursion: the depth, and that every text is one that UTF-8 can hold."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                if not (any_text or item.isascii()):
                    item.encode("utf-8")
            elif isinstance(item, dict):
                below += item.keys()
                below += item.values()
            elif isinstance(item, list):
                below += item
        level = below
    if any(isinstance(item, (dict, list)) for item in level):
        raise ValueError(f"more than {MAX_DEPTH} levels of objects and lists")
