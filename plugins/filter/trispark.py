"""Filters that only pick; decisions are in src/trispark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def boot_facts(variables: Mapping[str, Any]) -> dict[str, Any]:
    """What the tasks of a boot registered on one host, from its host variables; absent parts are empty."""

    def answer(name: str) -> Any:
        value = variables.get(name) or {}
        return value.get("answer") if isinstance(value, Mapping) else None

    return {
        "watch": _only(variables.get("engine_watch"), "seconds", "state", "last_log"),
        "observation": answer("engine_observation"),
        "gates": _only(variables.get("engine_gates"), "gates"),
        "bench": _only(variables.get("bench_run"), "answer"),
        "failure": variables.get("boot_failure") or {},
    }


def _only(value: Any, *names: str) -> dict[str, Any]:
    return {name: value[name] for name in names if name in value} if isinstance(value, Mapping) else {}


class FilterModule:
    """`trispark_boot_facts`."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"trispark_boot_facts": boot_facts}
