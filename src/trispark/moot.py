"""When a rollback that nodes remember asks for nothing any more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

Answers = Mapping[str, Mapping[str, Any]]
OUR_BOOT: Final = re.compile(r"b(\d{8}T\d{6}Z)-[0-9a-f]{4}")
"""As boot_plan.Moment names them; another one was started by a person on the nodes."""


def moot_rollbacks(answers: Answers, ranks: int, known: Mapping[str, str]) -> frozenset[str]:
    """Nodes whose rollback.json asks for nothing any more: the fleet was fenced with a greater epoch since (a boot, or
    a stop that gave it up), or serves by a boot of that epoch which was judged valid, or which a person has started."""
    newest = max((int(status.get("epoch") or 0) for status in answers.values()), default=0)
    engines = [status.get("engine") or {} for status in answers.values()]
    boots = {str(engine.get("boot_id")) for engine in engines}
    one = next(iter(boots)) if len(boots) == 1 else ""
    serves = (
        len(engines) == ranks
        and all(engine.get("state") == "running" for engine in engines)
        and bool(one)
        and (known.get(one) == "valid" or OUR_BOOT.fullmatch(one) is None)
    )
    return frozenset(
        node
        for node, status in answers.items()
        if (rollback := status.get("rollback")) and (int(rollback.get("epoch") or 0) < newest or serves)
    )
