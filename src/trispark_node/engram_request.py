"""The request of the verbs `engram` and `engram-job`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from trispark_node.canonical import canonical_json, sha256_hex
from trispark_node.errors import request_error
from trispark_node.fields import Fields
from trispark_node.ownership import EVEN, VERSIONS
from trispark_node.shard_check import LEVELS, QUICK

VERIFY, ENSURE, INSPECT = "verify", "ensure", "inspect"
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")


@dataclass(frozen=True)
class EngramRequest:
    """`reserve_bytes` stay free after packing; `limit_bytes_s` bounds reading and writing of whole shards, 0 is no
    bound; `running_mount` is the place in the engine's container whose source must be `directory`, or None."""

    action: str
    checkpoint: Path
    directory: Path
    rank: int
    tp: int
    layers: tuple[int, ...]
    repair: bool
    level: str
    layout: str
    revision: str | None
    reserve_bytes: int
    limit_bytes_s: int
    running_mount: str | None

    @classmethod
    def parse(cls, fields: Fields) -> EngramRequest:
        tp = fields.integer("tp", low=1, high=1024)
        request = cls(
            action=fields.text("action", pattern=re.compile(f"{VERIFY}|{ENSURE}|{INSPECT}")),
            checkpoint=Path(fields.absolute_path("checkpoint")),
            directory=Path(fields.absolute_path("directory")),
            rank=fields.integer("rank", high=tp - 1),
            tp=tp,
            layers=fields.integers("layers"),
            repair=fields.boolean("repair", False),
            level=fields.text("level", QUICK, pattern=re.compile("|".join(LEVELS))),
            layout=fields.text("layout", EVEN, pattern=re.compile("|".join(VERSIONS))),
            revision=fields.optional_text("revision", pattern=_REVISION),
            reserve_bytes=fields.integer("reserve_bytes", 0),
            limit_bytes_s=fields.integer("limit_bytes_s", 0),
            running_mount=fields.absolute_path("running_mount") if fields.has("running_mount") else None,
        )
        fields.anything("running_mount")
        if request.repair and request.action != ENSURE:
            raise request_error(
                "only ensure repairs", where="request.repair", expected="false", observed=f"true, {request.action}"
            )
        if request.level != QUICK and request.action != VERIFY:
            raise request_error(
                "a level is verify's",
                where="request.level",
                expected=QUICK,
                observed=f"{request.level}, {request.action}",
            )
        if len(set(request.layers)) != len(request.layers):
            raise request_error(
                "a layer occurs twice", where="request.layers", expected="each once", observed=str(request.layers)
            )
        return request

    @classmethod
    def parse_inner(cls, fields: Fields) -> EngramRequest:
        """Of an object that holds nothing else."""
        request = cls.parse(fields)
        fields.done()
        return request

    @property
    def title(self) -> str:
        """As a lock's holder is called."""
        return "engram ensure" if self.action == ENSURE else f"engram {self.action} {self.level}"

    @property
    def fingerprint(self) -> str:
        """Equal for requests that ask for the same result, whatever the speed."""
        asked = {name: str(value) for name, value in vars(self).items() if name != "limit_bytes_s"}
        return sha256_hex(canonical_json(asked))[:16]
