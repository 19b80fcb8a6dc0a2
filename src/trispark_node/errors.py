"""The agent's one failure type: an answer for a person, with a stable id for a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LABELS = (("where", "where"), ("expected", "expected"), ("observed", "observed"), ("remedy", "do"))
"""Fields of an error after its id and what is wrong, and how the line calls them."""
FIELDS = ("id", "what", *(name for name, _ in LABELS))


def error_line(fields: Mapping[str, str]) -> str:
    """`TS-ID: what; where: ...; expected: ...; observed: ...; do: ...` of the six fields, without empty ones; the one
    form of every error of the project."""
    said = [f"{label}: {fields[name]}" for name, label in LABELS if fields[name]]
    return " ".join("; ".join([f"{fields['id']}: {fields['what']}", *said]).split())


class AgentError(Exception):
    """What is wrong, where, what was expected and observed, and what to do about it.

    `extra` holds further keys of the answer beside `error` (for instance the list of files that were looked at).
    `status` is the exit status: 1 for a refusal or a failure, 2 for a request which the agent does not understand.
    """

    def __init__(
        self,
        error_id: str,
        what: str,
        *,
        where: str,
        expected: str,
        observed: str,
        remedy: str,
        extra: Mapping[str, Any] | None = None,
        status: int = 1,
    ) -> None:
        self.id = error_id
        self.what = what
        self.where = where
        self.expected = expected
        self.observed = observed
        self.remedy = remedy
        self.extra = dict(extra or {})
        self.status = status
        super().__init__(str(self))

    def fields(self) -> dict[str, str]:
        """The six fields of the answer, each on one line."""
        fields = {
            "id": self.id,
            "what": self.what,
            "where": self.where,
            "expected": self.expected,
            "observed": self.observed,
            "remedy": self.remedy,
        }
        return {key: " ".join(value.split()) for key, value in fields.items()}

    def beside(self, extra: Mapping[str, Any]) -> AgentError:
        """The same error with further keys of the answer."""
        return AgentError(
            self.id,
            self.what,
            where=self.where,
            expected=self.expected,
            observed=self.observed,
            remedy=self.remedy,
            extra={**self.extra, **extra},
            status=self.status,
        )

    def __str__(self) -> str:
        return error_line(self.fields())


def request_error(what: str, *, where: str, expected: str, observed: str) -> AgentError:
    """TS-AGENT-REQUEST: the caller asked for something that is no request of this verb."""
    return AgentError(
        "TS-AGENT-REQUEST",
        what,
        where=where,
        expected=expected,
        observed=observed,
        remedy="correct the request; nothing was changed",
        status=2,
    )
