"""Judges the gates of a boot on the controller; the work is in trispark.gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from trispark.boot_plan import owned_rows, table_rows
from trispark.controller_action import ControllerAction, failure
from trispark.errors import TrisparkError
from trispark.gate_result import GateResult, failed_line
from trispark.gates import evaluate, evaluate_after_load, failed
from trispark.images.identity_record import compact, of_nodes
from trispark.resolve import restore


class ActionModule(ControllerAction):
    """plugins/modules/trispark_gates.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "phase": {"type": "str", "choices": ["boot", "after_load"], "default": "boot"},
        "plan": {"type": "dict", "required": True},
        "observations": {"type": "dict", "required": True},
        "before": {"type": "dict", "required": True},
        "identities": {"type": "dict", "default": {}},
        "listed": {"type": "dict", "default": {}},
        "shards": {"type": "dict", "required": True},
        "canary": {"type": "dict", "default": {}},
        "batch": {"type": "dict", "default": {}},
        "quality": {"type": "dict", "default": {}},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        identities = of_nodes(given["identities"], given["listed"])
        try:
            results = judge(given, identities)
        except TrisparkError as error:
            return failure(error.as_dict(), gates=[])
        kept = compact(identities)
        gates = [result.as_dict() for result in results]
        bad = failed(results)
        if bad or not results:
            line = failed_line(bad, given["plan"]) if bad else "no gate was judged"
            check_id = bad[0].check_id if bad else "gates"
            return {
                "failed": True,
                "changed": False,
                "msg": line,
                "check_id": check_id,
                "gates": gates,
                "identities": kept,
            }
        return {"changed": False, "gates": gates, "identities": kept}


def judge(given: dict[str, Any], identities: Mapping[str, Any]) -> list[GateResult]:
    resolution = restore(given["plan"]["resolved"])
    rows = table_rows(given["plan"], given["shards"])
    if given["phase"] == "after_load":
        return evaluate_after_load(resolution, given["observations"], given["before"], rows)
    wanted = given["plan"]["batch"]["requests"]
    batch = (given["batch"].get("answers") or []) if wanted else None
    quality = (given["quality"].get("answers") or []) if given["plan"]["quality"]["requests"] else None
    canary = given["canary"] or None
    owned = owned_rows(given["shards"])
    observations = {
        node: seen and {**seen, "identity": identities.get(node)} for node, seen in given["observations"].items()
    }
    return evaluate(resolution, observations, canary, rows, given["before"], batch, owned, quality)
