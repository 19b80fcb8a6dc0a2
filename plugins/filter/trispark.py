"""Filters that only pick, and the lines of trispark.play_lines; decisions are in src/trispark.

Where a filter takes `hostvars`, it is applied to a list of hosts: `groups['sparks'] | trispark_answers(hostvars, 'x')`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trispark.play_lines import load_failed, not_promoted, not_recorded, unconfigured, uninstall_lines

HostVars = Mapping[str, Mapping[str, Any]]


def boot_facts(variables: Mapping[str, Any]) -> dict[str, Any]:
    """What the tasks of a boot registered on one host, from its host variables; absent parts are empty."""

    def gates(name: str) -> dict[str, Any]:
        return _only(variables.get(name), "gates")

    return {
        "watch": _only(variables.get("engine_watch"), "seconds", "state", "last_log"),
        "observation": answer(variables, "engine_observation"),
        "after_load": answer(variables, "engine_after_load"),
        "gates": gates("engine_gates"),
        "identities": _only(variables.get("engine_gates"), "identities").get("identities") or {},
        "gates_after": gates("engine_gates_after"),
        "bench": answer(variables, "bench_run") or _rows_of_refusal(variables.get("bench_run")),
        "failure": variables.get("boot_failure") or {},
    }


def _rows_of_refusal(value: Any) -> dict[str, Any]:
    """What a load client had written before its node ended it; `log_tail` is the reason."""
    found = value.get("answer") if isinstance(value, Mapping) else None
    rows = found.get("rows") if isinstance(found, Mapping) else None
    return {"rows": list(rows), "log_tail": [str(value["msg"])]} if rows and value.get("msg") else {}


def answer(variables: Mapping[str, Any], name: str, verb: str = "") -> dict[str, Any] | None:
    """The agent's answer that a task registered under `name` on one host; None when there is none, or a refusal in its
    place. With `verb` that to a step of several."""
    value = variables.get(name)
    found = value.get("answer") if isinstance(value, Mapping) else None
    if verb and isinstance(value, Mapping):
        found = (value.get("answers") or {}).get(verb)
    return dict(found) if isinstance(found, Mapping) and found.get("ok") else None


def results(hosts: Sequence[str], hostvars: HostVars, name: str) -> dict[str, Any]:
    """{host: all that a task registered under `name` there}; empty where it did not come to it."""
    return {host: hostvars[host].get(name) or {} for host in hosts}


def answers(hosts: Sequence[str], hostvars: HostVars, name: str, verb: str = "") -> dict[str, dict[str, Any] | None]:
    """{host: the agent's answer that a task registered under `name` there}; None where the node did not answer. With
    `verb` that to a step of several."""
    return {host: answer(hostvars[host], name, verb) for host in hosts}


def picked(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Of two tasks of which each host did one: what the one that was not skipped registered, by host."""

    def skipped(result: Any) -> bool:
        return not isinstance(result, Mapping) or not result or bool(result.get("skipped"))

    return {host: second.get(host) if skipped(first.get(host)) else first[host] for host in {*first, *second}}


def boots(hosts: Sequence[str], hostvars: HostVars) -> dict[str, dict[str, Any]]:
    """{host: what the tasks of a boot registered there}."""
    return {host: boot_facts(hostvars[host]) for host in hosts}


def lacking(hosts: Sequence[str], hostvars: HostVars, name: str, value: Any) -> list[str]:
    """Hosts whose variable `name` is not `value`: those that did not come as far."""
    return [host for host in hosts if hostvars[host].get(name) != value]


def lock_refusal(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The line of the first node that refused this command for the fleet lock, from the results of a task by node, or
    from what `boot_failure` noted of one; empty where none did. What else failed is for the verb itself to say."""
    results = {node: each.get("result") or each for node, each in found.items()}
    refused = {
        node: str(each.get("msg", ""))
        for node, each in results.items()
        if str(each.get("check_id", "")).startswith("TS-LOCK-")
    }
    return f"{next(iter(refused.values()))} (on {', '.join(refused)})" if refused else ""


def over_network(declared: Mapping[str, Any]) -> bool:
    """Whether the checkpoint's share, as declared, is a mount."""
    from trispark.share import over_network as judged  # here: few tasks ask it, and every playbook loads this file

    return judged(declared)


def trees_differ(observations: Mapping[str, Mapping[str, Any] | None]) -> bool:
    """Whether the hash trees that the nodes' observations hold differ, so that every file is asked for."""
    from trispark.images.parity import differ  # here: only a boot's gates ask it

    return differ({node: (seen or {}).get("identity") for node, seen in observations.items()})


def shard_lines(answer: Mapping[str, Any], node: str, check: bool) -> list[str]:
    """One line a shard and one for what lies beside them: what was found and done, or in check mode would be done."""
    from trispark.shard_report import shard_lines as lines

    return lines(answer, node, check)


def images(engine: str, further: Mapping[str, str], bench: str) -> list[str]:
    """Every image that a site names, each once; an empty `bench` is none."""
    return list(dict.fromkeys(image for image in (engine, *further.values(), bench) if image))


def shard_report(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`lines` and `published` of the results of `trispark_shards` by node."""
    from trispark.shard_report import report

    return report(found)


def _only(value: Any, *names: str) -> dict[str, Any]:
    return {name: value[name] for name in names if name in value} if isinstance(value, Mapping) else {}


class FilterModule:
    """All begin with `trispark_`; those that end with `_line` give a failure's line."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "trispark_results": results,
            "trispark_answers": answers,
            "trispark_picked": picked,
            "trispark_boots": boots,
            "trispark_lacking": lacking,
            "trispark_lock_refusal": lock_refusal,
            "trispark_over_network": over_network,
            "trispark_images": images,
            "trispark_trees_differ": trees_differ,
            "trispark_shard_lines": shard_lines,
            "trispark_shard_report": shard_report,
            "trispark_uninstall_lines": uninstall_lines,
            "trispark_unconfigured_line": lambda site_name: str(unconfigured(site_name)),
            "trispark_load_failed_line": lambda answer, node: str(load_failed(answer, node)),
            "trispark_not_recorded_line": lambda hosts, boot_id: str(not_recorded(hosts, boot_id)),
            "trispark_not_promoted_line": lambda hosts: str(not_promoted(hosts)),
        }
