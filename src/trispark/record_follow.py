"""What a boot's record follows, also where the chains are not in order.

A boot that somebody chose to make is refused before it begins where the chains are not one, and its record later. A
rollback is not, and what ended without a record has run already: these are recorded whatever is found. The record
follows the chain of the nodes; the nodes of another one do not get it and are named, as are copies of the controller
that the nodes contradict or that cannot be read, which are kept aside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trispark.errors import TrisparkError
from trispark.record_chain import Heads, Plan, heads_of, judge, set_aside, set_aside_older_chain
from trispark.records import RecordCache

ALWAYS_RECORDED: Final = ("rollback", "interrupted")
"""Purposes of boots that are recorded also beside a fork."""


@dataclass(frozen=True)
class Following:
    """`head`: what the new record follows; `aside`: where copies of another chain are kept now; `faults`: what is
    wrong with chains, in lines; `forked`: nodes that are named there."""

    head: Mapping[str, Any] | None
    heads: Heads
    aside: Path | None
    faults: tuple[str, ...]
    forked: frozenset[str]

    def warnings(self, plan: Plan) -> list[str]:
        """A node that is named once is not named again for what it does not get."""
        return [*self.faults, *(str(why) for node, why in plan.waiting.items() if node not in self.forked)]


def follow(
    statuses: Mapping[str, Mapping[str, Any] | None], cache: RecordCache, purpose: str, *, change: bool
) -> Following:
    """Raises TS-RECORD-FORK, TS-RECORD-READ for a boot of another purpose. Without `change` no copy is kept aside."""
    heads = heads_of(statuses)
    faults: list[str] = []
    aside = None
    always = purpose in ALWAYS_RECORDED
    try:
        cache.list()
    except TrisparkError as error:
        if not (always and change):
            raise
        aside = set_aside(cache)
        faults.append(f"{error}; the copies are kept in {aside}")
    if change and aside is None:
        aside = set_aside_older_chain(statuses, heads, cache)
    chain = judge(heads, cache)
    if not always:
        chain.require_one()
    if chain.copy_fork is not None and change:
        aside = set_aside(cache, "forked")
        faults.append(f"{chain.copy_fork}; the copies are kept in {aside}")
    faults.extend(str(fork) for fork in chain.forks.values())
    return Following(chain.head, heads, aside, tuple(faults), frozenset(chain.forks))
