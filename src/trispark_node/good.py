"""Verb `good-mark`: which generations passed their gates outside a trial, newest last."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from trispark_node.canonical import canonical_json
from trispark_node.fields import GENERATION_ID, NAME, Fields
from trispark_node.generations import require_whole
from trispark_node.mutation import Plan
from trispark_node.node import Node


@dataclass(frozen=True)
class GoodMark:
    generation: str
    boot_id: str
    time: str

    @classmethod
    def parse(cls, fields: Fields) -> GoodMark:
        return cls(
            fields.text("generation", pattern=GENERATION_ID), fields.text("boot_id", pattern=NAME), fields.text("time")
        )


def read(node: Node) -> list[GoodMark]:
    """An unfinished last line was never acknowledged; a line that is none is left out, so that a rollback finds the
    others."""
    try:
        lines = node.layout.good.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    marks = []
    for line in lines:
        try:
            value = json.loads(line)
            marks.append(GoodMark(value["generation"], value["boot_id"], value["time"]))
        except (ValueError, KeyError, TypeError):
            continue
    return marks


def plan_mark(node: Node, mark: GoodMark) -> Plan:
    marks = read(node)
    last = marks[-1] if marks else None
    if last is not None and last.generation == mark.generation:
        return Plan(None, {"generation": mark.generation, "boot_id": last.boot_id})
    require_whole(node, mark.generation)

    def apply() -> dict[str, Any]:
        node.disk.append_line(node.layout.good, canonical_json(asdict(mark)))
        return {}

    return Plan(
        apply,
        {"generation": mark.generation, "boot_id": mark.boot_id},
        {"generation": mark.generation, "boot_id": mark.boot_id},
        (f"good {last.generation if last else 'none'}\n", f"good {mark.generation}\n"),
    )
