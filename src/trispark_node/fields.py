"""Hand-written validation of JSON at the border: every key is named once, typed, and unknown keys are refused."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trispark_node.errors import request_error

_MISSING = object()
NOTHING = "nothing"
"""Observed where a key is missing or null."""
MOST = 2**63 - 1

GENERATION_ID = re.compile(r"g[0-9a-f]{16}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Boot ids, record ids and container names: safe as one path component and as a Docker name."""
RELATIVE_PATH = re.compile(r"(?!.*(^|/)\.{1,2}(/|$))[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")


class Fields:
    """Typed reading of one JSON object; `done` refuses what nobody asked for.

    Every reader raises TS-AGENT-REQUEST naming `where.key`, the expected type and what was there instead.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where
        self._seen: set[str] = set()

    @property
    def where(self) -> str:
        return self._where

    def has(self, key: str) -> bool:
        """True when the key is there with a value other than null."""
        return self._values.get(key) is not None

    def _take(self, key: str, default: Any, expected: str) -> Any:
        self._seen.add(key)
        value = self._values.get(key)
        if value is None:
            if default is _MISSING:
                raise request_error(
                    f"{key} is missing", where=f"{self._where}.{key}", expected=expected, observed=NOTHING
                )
            return default
        return value

    def _refuse(self, key: str, expected: str, value: Any) -> Exception:
        shown = json.dumps(value, ensure_ascii=False)
        return request_error(
            f"{key} has the wrong form",
            where=f"{self._where}.{key}",
            expected=expected,
            observed=shown if len(shown) <= 120 else shown[:117] + "...",
        )

    def text(self, key: str, default: Any = _MISSING, *, pattern: re.Pattern[str] | None = None) -> str:
        expected = "a string" if pattern is None else f"a string like {pattern.pattern}"
        value = self._take(key, default, expected)
        if not isinstance(value, str) or (value != default and pattern is not None and not pattern.fullmatch(value)):
            raise self._refuse(key, expected, value)
        return value

    def optional_text(self, key: str, *, pattern: re.Pattern[str] | None = None) -> str | None:
        self._seen.add(key)
        return self.text(key, pattern=pattern) if self.has(key) else None

    def absolute_path(self, key: str) -> str:
        value = self.text(key)
        if not value.startswith("/") or "\0" in value or "/../" in f"{value}/":
            raise self._refuse(key, "an absolute path without ..", value)
        return value

    def integer(self, key: str, default: Any = _MISSING, *, low: int = 0, high: int = MOST) -> int:
        expected = f"an integer {low}..{high}" if high != MOST else f"an integer of at least {low} and below 2^63"
        value = self._take(key, default, expected)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._refuse(key, expected, value)
        return value

    def seconds(self, key: str, default: Any = _MISSING, *, high: float = 86400.0) -> float:
        expected = f"seconds, 0..{high:g}"
        value = self._take(key, default, expected)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= high:
            raise self._refuse(key, expected, value)
        return float(value)

    def boolean(self, key: str, default: Any = _MISSING) -> bool:
        value = self._take(key, default, "true or false")
        if not isinstance(value, bool):
            raise self._refuse(key, "true or false", value)
        return value

    def mapping(self, key: str, default: Any = _MISSING) -> dict[str, Any]:
        value = self._take(key, default, "an object")
        if not isinstance(value, dict):
            raise self._refuse(key, "an object", value)
        return value

    def text_mapping(self, key: str, default: Any = _MISSING) -> dict[str, str]:
        value = self.mapping(key, default)
        for name, item in value.items():
            if not isinstance(item, str):
                raise self._refuse(f"{key}.{name}", "a string", item)
        return value

    def content_mapping(self, key: str, default: Any = _MISSING) -> dict[str, bytes]:
        """{name: content} of an object whose values are text or {"base64": ...}."""
        content: dict[str, bytes] = {}
        for name, item in self.mapping(key, default).items():
            expected = 'a string, or {"base64": ...}'
            try:
                if isinstance(item, str):
                    content[name] = item.encode("utf-8")
                elif isinstance(item, dict) and list(item) == ["base64"] and isinstance(item["base64"], str):
                    content[name] = base64.b64decode(item["base64"], validate=True)
                else:
                    raise self._refuse(f"{key}.{name}", expected, item)
            except ValueError:  # a lone surrogate, or no base64
                raise self._refuse(f"{key}.{name}", expected, item) from None
        return content

    def sequence(self, key: str, default: Any = _MISSING) -> list[Any]:
        value = self._take(key, default, "a list")
        if not isinstance(value, list):
            raise self._refuse(key, "a list", value)
        return value

    def texts(self, key: str, default: Any = _MISSING) -> tuple[str, ...]:
        value = self.sequence(key, default)
        if not all(isinstance(item, str) for item in value):
            raise self._refuse(key, "a list of strings", value)
        return tuple(value)

    def integers(self, key: str, *, low: int = 0, high: int = 2**31 - 1) -> tuple[int, ...]:
        value = self.sequence(key)
        if not value or not all(type(item) is int and low <= item <= high for item in value):
            raise self._refuse(key, f"a list of integers {low}..{high}", value)
        return tuple(value)

    def anything(self, key: str) -> Any:
        """The value as it is, None when absent."""
        self._seen.add(key)
        return self._values.get(key)

    def inner(self, key: str) -> Fields:
        """The object under `key`, to be read field by field."""
        return Fields(self.mapping(key), f"{self._where}.{key}")

    def inners(self, key: str, default: Sequence[Any] | Any = _MISSING) -> list[Fields]:
        """The list of objects under `key`."""
        found = []
        for index, item in enumerate(self.sequence(key, default)):
            if not isinstance(item, dict):
                raise self._refuse(f"{key}[{index}]", "an object", item)
            found.append(Fields(item, f"{self._where}.{key}[{index}]"))
        return found

    def done(self) -> None:
        """Refuse keys that no reader asked for: a misspelt option must not be ignored silently."""
        unknown = sorted(set(self._values) - self._seen)
        if unknown:
            raise request_error(
                "unknown key",
                where=self._where,
                expected=f"only {', '.join(sorted(self._seen))}" if self._seen else "no key",
                observed=", ".join(unknown),
            )
