"""The one shape of every changing verb: plan without an effect, then intent, effect, done, under a lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trispark_node.fields import Fields
from trispark_node.fleet_lock import refuse_lost
from trispark_node.fleet_owner import Owner
from trispark_node.lock import held
from trispark_node.node import Node
from trispark_node.overtake import OVERTAKES, Overtake


@dataclass(frozen=True)
class Plan:
    """What a verb found out by reading only.

    `apply` does the effect and returns further keys of the answer; None when there is nothing to do. `result` is part
    of the answer in either case, `detail` goes into the journal, `diff` is (before, after) for people.
    """

    apply: Callable[[], Mapping[str, Any]] | None
    result: Mapping[str, Any] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)
    diff: tuple[str, str] | None = None
    journal_required: bool = True

    def answer(self) -> dict[str, Any]:
        answer = {"changed": self.apply is not None, **self.result}
        if self.diff is not None:
            answer["diff"] = {"before": self.diff[0], "after": self.diff[1]}
        return answer


@dataclass(frozen=True)
class Mode:
    """How a changing verb was asked for. `check`: change nothing, say what would change; `owner`: whose command it is,
    None for a person on the node's shell."""

    check: bool
    lock_wait_s: float
    owner: Owner | None = None

    @classmethod
    def parse(cls, fields: Fields) -> Mode:
        return cls(
            fields.boolean("check", False),
            fields.seconds("lock_wait_s", 10, high=600),
            Owner.of_request(fields),
        )


def mutate(node: Node, verb: str, mode: Mode, plan: Callable[[], Plan], area: str = "state") -> dict[str, Any]:
    """Nothing on the disk is touched in check mode or when the plan finds nothing to do."""
    if mode.check:
        return plan().answer()
    node.disk.make_directory(node.layout.root)
    path = node.layout.lock(area)
    overtake = Overtake(node.procfs, path, node.clock) if verb in OVERTAKES else None
    with held(path, node.clock, mode.lock_wait_s, verb, overtake) as note:
        refuse_lost(node, mode.owner)
        overtook = {"overtook": overtake.ended} if overtake is not None and overtake.ended else {}
        planned = plan()
        if planned.apply is None:
            return {**planned.answer(), **overtook}
        note()
        with node.journal.step(verb, {**planned.detail, **overtook}, required=planned.journal_required):
            return {**planned.answer(), **planned.apply(), **overtook}
