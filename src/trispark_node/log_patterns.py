"""Counts of lines over a whole log, for a reader who gets only its beginning and its end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from trispark_node.errors import request_error
from trispark_node.fields import Fields
from trispark_node.redaction import TextRedactor

MAX_PATTERNS = 64
MAX_PATTERN_CHARACTERS = 300


def parse_patterns(fields: Fields) -> tuple[str, ...]:
    """The request's `patterns`: Python regular expressions. Raises TS-AGENT-REQUEST naming the one that is none."""
    patterns = fields.texts("patterns", [])
    if len(patterns) > MAX_PATTERNS:
        raise request_error(
            "too many patterns",
            where=f"{fields.where}.patterns",
            expected=f"at most {MAX_PATTERNS}",
            observed=str(len(patterns)),
        )
    for index, pattern in enumerate(patterns):
        where = f"{fields.where}.patterns[{index}]"
        if len(pattern) > MAX_PATTERN_CHARACTERS:
            raise request_error(
                "a pattern is too long",
                where=where,
                expected=f"at most {MAX_PATTERN_CHARACTERS} characters",
                observed=str(len(pattern)),
            )
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise request_error(
                "a pattern is no regular expression",
                where=where,
                expected="a regular expression of Python's re",
                observed=f"{pattern}: {error}",
            ) from None
    return patterns


class PatternCount:
    """Reads along while a log passes. What is searched is the redacted line, without its line end: a pattern must not
    find out a secret that the answer hides."""

    def __init__(self, patterns: Iterable[str], redactor: TextRedactor) -> None:
        self._searches = {pattern: re.compile(pattern).search for pattern in patterns}
        self._redactor = redactor
        self._counts = dict.fromkeys(self._searches, 0)

    def passing(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        rest: list[bytes] = []  # of a line that has not ended yet
        for piece in pieces:
            yield piece
            first, *others = piece.split(b"\n")
            rest.append(first)
            if others:
                self._count([b"".join(rest), *others[:-1]])
                rest = [others[-1]]
        if any(rest):
            self._count([b"".join(rest)])

    def _count(self, lines: list[bytes]) -> None:
        for line in lines:
            text = self._redactor.text(line.decode("utf-8", "replace").rstrip("\r"))
            for pattern, search in self._searches.items():
                if search(text):
                    self._counts[pattern] += 1

    def counts(self) -> dict[str, int]:
        """{pattern: lines in which it is found}, complete after the last piece has passed."""
        return dict(self._counts)
