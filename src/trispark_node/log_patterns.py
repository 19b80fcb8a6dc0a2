"""The lines of a whole log that a reader asks for, so that a long log needs not be handed out to be judged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from trispark_node.errors import request_error
from trispark_node.fields import Fields
from trispark_node.redaction import TextRedactor

MAX_PATTERNS = 256
MAX_PATTERN_CHARACTERS = 1000


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


def matching_lines(pieces: Iterable[bytes], patterns: Iterable[str], redactor: TextRedactor) -> Iterator[bytes]:
    """The lines in which one of the patterns is found, with their line ends; no more than one line is held.

    What is searched is the redacted line, without its line end: a pattern must not find out a secret that the answer
    hides.
    """
    searches = [re.compile(pattern).search for pattern in patterns]
    for line in _lines(pieces):
        text = redactor.text(line.decode("utf-8", "replace").rstrip("\r\n"))
        if any(search(text) for search in searches):
            yield line


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest: list[bytes] = []  # of a line that has not ended yet
    for piece in pieces:
        first, *others = piece.split(b"\n")
        rest.append(first)
        if others:
            yield b"".join(rest) + b"\n"
            yield from (line + b"\n" for line in others[:-1])
            rest = [others[-1]]
    if any(rest):
        yield b"".join(rest)
