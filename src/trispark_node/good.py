"""Verb `good-mark`: which generations passed their gates outside a trial, newest last."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from trispark_node.canonical import canonical_json
from trispark_node.errors import AgentError
from trispark_node.fields import GENERATION_ID, NAME, Fields
from trispark_node.generations import require_whole
from trispark_node.mutation import Plan
from trispark_node.node import Node
from trispark_node.plain_json import parse_json
from trispark_node.regular_file import read_regular


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


@dataclass(frozen=True)
class GoodMarks:
    """All readable marks, newest last, and the numbers (from 1) of complete lines that are none."""

    marks: tuple[GoodMark, ...]
    damaged_lines: tuple[int, ...]


def read(node: Node) -> GoodMarks:
    """An unfinished last line was never acknowledged; a line that is no mark is left out and named, so that a rollback
    finds the others."""
    path = node.layout.good
    try:
        lines = read_regular(path).split(b"\n")[:-1]
    except FileNotFoundError:
        return GoodMarks((), ())
    marks: list[GoodMark] = []
    damaged: list[int] = []
    for number, line in enumerate(lines, start=1):
        try:
            fields = Fields(parse_json(line), str(path))
            mark = GoodMark.parse(fields)
            fields.done()
        except (ValueError, TypeError, AttributeError, AgentError):
            damaged.append(number)
        else:
            marks.append(mark)
    return GoodMarks(tuple(marks), tuple(damaged))


def plan_mark(node: Node, mark: GoodMark) -> Plan:
    marks = read(node).marks
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
