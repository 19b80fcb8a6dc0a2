"""Who works on the fleet: one command of one controller, with all runs that it starts, under one token."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from trispark_node.fields import Fields

TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
WORDS = re.compile(r"[^\x00-\x1f\x7f]{1,120}")
"""For people, on one line."""


@dataclass(frozen=True)
class Owner:
    """`token` alone decides; the rest is for people. `breaks`: a stop or a rollback of this command takes the lock from
    whoever has it."""

    token: str
    host: str
    pid: int
    user: str
    reason: str
    breaks: bool = False

    @classmethod
    def of_request(cls, fields: Fields) -> Owner | None:
        """From the request's `owner`; None where it has none."""
        fields.anything("owner")
        return cls.parse(fields.inner("owner")) if fields.has("owner") else None

    @classmethod
    def parse(cls, fields: Fields) -> Owner:
        owner = cls(
            token=fields.text("token", pattern=TOKEN),
            host=fields.text("host", pattern=WORDS),
            pid=fields.integer("pid", low=1),
            user=fields.text("user", pattern=WORDS),
            reason=fields.text("reason", pattern=WORDS),
            breaks=fields.boolean("breaks", False),
        )
        fields.done()
        return owner

    def names(self) -> dict[str, Any]:
        return {"host": self.host, "pid": self.pid, "reason": self.reason, "token": self.token, "user": self.user}

    def line(self) -> str:
        return f"{self.reason} of {self.user} on {self.host}, pid {self.pid}"
