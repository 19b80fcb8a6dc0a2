"""The one exception of the controller library: a stable id and what a reader needs to act."""

from __future__ import annotations

import re
from typing import Final

from trispark_node.errors import error_line

ID_PATTERN: Final = re.compile(r"TS-[A-Z0-9]+(?:-[A-Z0-9]+)+")


class TrisparkError(Exception):
    """A refusal or failure that a user can act on; `str()` is one line without a traceback.

    `id` is stable (`TS-<AREA>-<WORD>`). All fields are needed: what is wrong, where, what was expected and observed,
    and what to do about it.
    """

    def __init__(self, id: str, what: str, where: str, expected: str, observed: str, remedy: str) -> None:
        if ID_PATTERN.fullmatch(id) is None:
            raise ValueError(f"not an error id: {id!r}")
        self.id = id
        self.what = what
        self.where = where
        self.expected = expected
        self.observed = observed
        self.remedy = remedy
        super().__init__(id, what, where, expected, observed, remedy)

    def __str__(self) -> str:
        return error_line(self.as_dict())

    def as_dict(self) -> dict[str, str]:
        """The fields as a module or the agent reports them."""
        return {
            "id": self.id,
            "what": self.what,
            "where": self.where,
            "expected": self.expected,
            "observed": self.observed,
            "remedy": self.remedy,
        }
