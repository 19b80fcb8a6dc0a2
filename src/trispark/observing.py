"""Asks one rank what it runs until its row store has counted what was awaited, or the deadline is over.

The counters are printed once a period (DSV41_STATS_SECONDS). An observation taken at once after requests would miss
their reads. Lines that are awaited for other gates are waited for as well; whether they are there is for the gates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from trispark.logparse import lines_matching, total_lookups

AWAITED: Final = {
    "boot": ("engram.reads", "the canary"),
    "after_load": ("after_load.engram.reads", "the measurement"),
}
"""By the phase of a boot: the check that fails without new reads, and what must have caused them."""


def observe(
    ask: Callable[[], Mapping[str, Any]],
    *,
    layers: Sequence[int],
    more_than: Mapping[int, int],
    awaited: Sequence[str],
    deadline_s: float,
    interval_s: float,
    phase: str,
    clock: Callable[[], float],
    pause: Callable[[float], None],
) -> dict[str, Any]:
    """The task's result: the agent's `answer` and `lookups`, the total per layer as {"1": n, "14": n}; `failed` with
    check_id and msg when a layer has no more than `more_than` {layer: lookups} at the deadline.

    `ask()` is the agent's verb `observe`; what it raises is raised on. `awaited`: patterns of lines.
    """
    deadline = clock() + deadline_s
    while True:
        answer = ask()
        totals = total_lookups(answer["log"])
        lookups = {layer: totals.get(layer, 0) for layer in layers}
        result = {"answer": answer, "lookups": {str(layer): count for layer, count in lookups.items()}}
        counted = all(lookups[layer] > count for layer, count in more_than.items())
        shown = all(lines_matching(pattern, answer["log"]) for pattern in awaited)
        late = clock() > deadline
        if counted and (shown or late):
            return result
        if late:
            check_id, cause = AWAITED[phase]
            line = (
                f"{check_id}: the row store counted no read of {cause} in time; expected: more than {dict(more_than)}; "
                f"observed: {lookups}; do: read the rank's log for its Engram lines"
            )
            return {**result, "failed": True, "check_id": check_id, "msg": line}
        pause(interval_s)
