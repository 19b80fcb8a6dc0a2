"""What the verbs print: lines for a person, and one JSON object as the last line of standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, TextIO


class Terminal:
    """Standard output and error. Results go to ``out``, errors to ``err``."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr

    @property
    def out(self) -> TextIO:
        return self._out

    def say(self, line: str = "") -> None:
        print(_printable(line, self._out), file=self._out, flush=True)

    def error(self, line: str) -> None:
        # Order on a terminal that shows both streams.
        self._out.flush()
        print(f"trispark: {_printable(line, self._err)}", file=self._err, flush=True)

    def json(self, value: Mapping[str, Any]) -> None:
        """Print ``value`` on one line; nothing may be printed after it."""
        self._err.flush()
        line = json.dumps(value, ensure_ascii=False, sort_keys=False)
        if _printable(line, self._out) != line:
            line = json.dumps(value, ensure_ascii=True, sort_keys=False)
        print(line, file=self._out, flush=True)


def _printable(text: str, stream: TextIO) -> str:
    """What the stream's encoding cannot hold, as a byte of an argument that is no UTF-8, is shown by its code."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
