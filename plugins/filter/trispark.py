"""Filters that only pick; decisions are in src/trispark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def boot_facts(variables: Mapping[str, Any]) -> dict[str, Any]:
    """What the tasks of a boot registered on one host, from its host variables; absent parts are empty."""

    def gates(name: str) -> dict[str, Any]:
        return _only(variables.get(name), "gates")

    return {
        "watch": _only(variables.get("engine_watch"), "seconds", "state", "last_log"),
        "observation": answer(variables, "engine_observation"),
        "after_load": answer(variables, "engine_after_load"),
        "gates": gates("engine_gates"),
        "gates_after": gates("engine_gates_after"),
        "bench": answer(variables, "bench_run") or {},
        "failure": variables.get("boot_failure") or {},
    }


def answer(variables: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The agent's answer that a task registered under `name` on one host; None when there is none, or a refusal in its
    place."""
    value = variables.get(name)
    found = value.get("answer") if isinstance(value, Mapping) else None
    return dict(found) if isinstance(found, Mapping) and found.get("ok") else None


def shard_lines(files: list[Mapping[str, Any]], node: str, check: bool) -> list[str]:
    """One line a shard: what was found and done, or in check mode would be done."""
    lines = []
    for file in files:
        action = str(file["action"])
        done = f"would be {action}" if check and action != "none" else action
        line = f"{node} {file['file']}: rows [{file['first_row']},{file['end_row']}) {file['state']}"
        lines.append(line if action == "none" else f"{line}, {done}")
    return lines


def _only(value: Any, *names: str) -> dict[str, Any]:
    return {name: value[name] for name in names if name in value} if isinstance(value, Mapping) else {}


class FilterModule:
    """`trispark_boot_facts`, `trispark_answer`, `trispark_shard_lines`."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "trispark_boot_facts": boot_facts,
            "trispark_answer": answer,
            "trispark_shard_lines": shard_lines,
        }
