"""What a playbook says at its end: lines for people, and a dictionary for the caller (`published`)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trispark.agent_deadline import LATE
from trispark.benchstats import summarize
from trispark.errors import TrisparkError
from trispark.fleet_state import judge
from trispark.records import RecordCache
from trispark.site import LAB
from trispark.stage_playbook import feature_arguments, playbook_of
from trispark.status_view import status_lines
from trispark.verdict import INCONCLUSIVE, KEEP, REJECT

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Report:
    """`failure_line` is empty unless the playbook has to end with it."""

    lines: list[str]
    published: dict[str, Any]
    failure_line: str = ""


def record_path(cache: RecordCache, record: Record, root: Path) -> str:
    """The cached record's file, relative to the project."""
    # Not resolved: .trispark may be a link to another disk.
    return os.path.relpath(cache.path(record), root)


def stage_a(record: Record, path: str) -> Report:
    """Packed state of every rank and layer, and the baseline's C1 and C4. `c1_tok_s` is prose, the review's C1."""
    measured = record["bench"] and record["outcome"]["state"] == "valid"
    metrics = summarize(record["bench"]).metrics() if measured else {}
    ranks = record["observed"]["ranks"]
    packed = all(rank["engram"] and all(layer["packed"] for layer in rank["engram"]) for rank in ranks)
    lines = [f"boot {record['boot_id']}: {record['outcome']['state']}, generation {record['resolved']['generation']}"]
    for rank in ranks:
        for layer in rank["engram"]:
            lines.append(
                f"rank {rank['rank']} layer {layer['layer']}: packed={layer['packed']} "
                f"rows [{layer['first_row']},{layer['end_row']}) lookups {layer['lookups']} reads {layer['reads']}"
            )
    lines += [f"{name}: {value:.3g}" for name, value in sorted(metrics.items())]
    published = {
        "packed_ok": packed,
        "boot_id": record["boot_id"],
        "c1_tok_s": metrics.get("c1-prose.decode_tps"),
        "c4_tok_s": metrics.get("c4.agg_tps"),
        "metrics": metrics,
        "record": path,
    }
    return Report(lines, {"stage_a": published})


@dataclass(frozen=True)
class RecordedTrial:
    """The record of a trial and those of its counted boots, each with the path of the controller's copy; and of all of
    its boots those that are not valid."""

    record: Record
    path: str
    boots: Sequence[Record]
    boot_paths: Sequence[str]
    invalid: Sequence[Record] = ()


MIB: Final = 1024 * 1024


def not_restored(walk: str) -> str:
    """The line of a trial that left production without its baseline."""
    return str(
        TrisparkError(
            "TS-TRIAL-RESTORE",
            "the baseline does not serve again",
            where=f"trial {walk}",
            expected="the site's baseline on every rank",
            observed="a boot of the trial was begun, and none that restores it is valid",
            remedy="playbooks/rollback.yml",
        )
    )


def trials(walk: str, found: Sequence[RecordedTrial], ended: str, *, restored: bool) -> Report:
    """The verdicts of a walk: of one trial under `trial`, and of all, one a value of a sweep, under `trials`.

    `ended` says why the walk did not make all of its boots; empty when it did. `restored`: whether the baseline serves.
    """
    each = [_trial(entry) for entry in found]
    published: dict[str, Any] = {
        "trials": [report.published for report in each],
        "records": [path for entry in found for path in (*entry.boot_paths, entry.path)],
    }
    published["records"] = list(dict.fromkeys(published["records"]))
    if len(each) == 1:
        published["trial"] = each[0].published
    failures = list(dict.fromkeys(report.failure_line for report in each if report.failure_line))
    if ended and not failures:
        error = TrisparkError(
            "TS-TRIAL-ENDED",
            "the trial ended before all of its boots were made",
            where=f"trial {walk}",
            expected="every boot of its plan",
            observed=ended,
            remedy="mend what the line names, then start a new trial",
        )
        failures = [str(error)]
    if not restored:
        failures.insert(0, not_restored(walk))
    return Report([line for report in each for line in report.lines], published, " | ".join(failures))


def paused(walk: str, reason: str, *, restored: str | None, begun: bool) -> Report:
    """A walk that its deadline ended: no verdict yet.

    `begun`: whether a boot of it was begun; then it is a failure when no boot `restored` the baseline.
    """
    serves = f"the baseline serves ({restored})" if restored else "the baseline is NOT restored"
    if not begun:
        serves = "nothing was started"
    line = f"trial {walk} is paused: {reason}; {serves}; the same playbook with -e resume={walk} goes on"
    published = {"walk": walk, "reason": reason, "restored": restored, "begun": begun}
    return Report([line], {"paused": published}, not_restored(walk) if begun and not restored else "")


def _trial(entry: RecordedTrial) -> Report:
    """The verdict, the differences as ratios, and the candidate's failure when it had one."""
    record, boots = entry.record, entry.boots
    outcome = record["outcome"]
    feature, value = record["requested"]["feature"], record["requested"].get("value")
    label = feature if value is None else f"{feature}={value}"
    failed = list(entry.invalid) or [boot for boot in boots if boot["outcome"]["state"] != "valid"]
    lines = [f"{label}: {outcome['verdict']}: {outcome['reason']}"]
    if outcome["verdict"] == INCONCLUSIVE:
        do, *commands = _undecided(record, boots, failed)
        lines[0] += f"; do: {do}"
        lines += commands
    lines += confirmation_lines(record)
    lines += _judged(outcome)
    for name, ratio in outcome["differences"].items():
        shown = f"{ratio['ratio']:.3f}" if ratio["ratio"] is not None else "no ratio"
        lines.append(f"{name}: baseline {ratio['baseline']:.4g}, candidate {ratio['candidate']:.4g}, ratio {shown}")
    lines += _memory(boots)
    restored = outcome["restored"]
    lines.append(f"the baseline {restored} serves again" if restored else "the baseline is NOT restored")
    published = {
        "id": record.get("id"),
        "feature": feature,
        "value": value,
        "verdict": outcome["verdict"],
        "code": outcome.get("code", ""),
        "reason": outcome["reason"],
        "differences": outcome["differences"],
        "restored": restored,
        "record": entry.path,
    }
    if confirms := record.get("resolved", {}).get("confirms"):
        published["confirms"] = confirms
    failure = _failed_boot(failed[0]) if failed else ""
    if str(outcome["reason"]).startswith(("TS-TRIAL-", "TS-VERDICT-")):
        failure = str(outcome["reason"])  # the boots cannot be compared
    return Report(lines, published, failure)


def confirmation_lines(record: Record) -> list[str]:
    """What a confirmation is of, and what its verdict means for what was promoted; empty for another trial."""
    parts = record.get("resolved", {}).get("confirms") or ()
    if not parts:
        return []
    lines = [f"promoted by {part['record']} ({part['feature']}): {', '.join(part['keys'])}" for part in parts]
    back = f"./trispark play promote --site {record['site']} -e revert=true"
    kept = " then ".join(f"-e record={part['record']}" for part in parts)
    lines.append(
        {
            KEEP: "confirmed: the site keeps the baseline that it has; this verdict alone says what was gained",
            REJECT: f"not confirmed, and nothing was changed: the bundle stays promoted until {back}; what is still "
            f"wanted is promoted again in its order ({kept}), then ./trispark play site boots it",
        }.get(record["outcome"]["verdict"], "not confirmed yet, and nothing was changed: the bundle stays promoted")
    )
    return lines


def report_lines(found: Sequence[RecordedTrial]) -> list[str]:
    """The command that writes the report of each trial."""
    lines = []
    for record in (entry.record for entry in found):
        at = "" if record["site"] == LAB else f" --site {record['site']}"
        lines.append(f"report: ./trispark report {record['id']}{at}")
    return lines


def _judged(outcome: Record) -> list[str]:
    """What the look that decided says of each metric and of the mechanism, and what nothing checked."""
    lines = []
    detail = outcome.get("detail")
    for each in detail["metrics"] if detail else ():
        shown = [f"{name} {_range(each[name])}" for name in ("welch", "paired", "hodges_lehmann")]
        lines.append(f"{each['metric']} ({each['role']}): {each['state']}: {'; '.join(shown)}")
    for each in detail["mechanism"] if detail else ():
        state = {True: "moved as declared", False: "did not move as declared", None: "was not measured"}[each["moved"]]
        lines.append(f"mechanism {each['metric']}: {state}")
    if outcome.get("unchecked"):
        lines.append(f"not checked: {', '.join(outcome['unchecked'])}")
    return lines


def _range(found: Record) -> str:
    middle = f"{100 * (found['ratio'] - 1):+.2f} %"
    if found["low"] is None:
        return f"{middle}, no interval"
    low, high = (100 * (found[end] - 1) for end in ("low", "high"))
    return f"{middle} [{low:+.2f}, {high:+.2f}] at {100 * found['covers']:.1f} %"


def _memory(boots: Sequence[Record]) -> list[str]:
    """What each rank held in the first boot of both arms, where both were seen."""
    arms = [
        {rank["rank"]: rank["memory"] for rank in boot["observed"]["ranks"] if rank.get("memory")} for boot in boots[:2]
    ]
    if len(arms) < 2:
        return []
    return [
        f"rank {rank} memory: engine {before['resident_bytes'] / MIB:.0f} -> {after['resident_bytes'] / MIB:.0f} MiB, "
        f"node free {before['memory_available_bytes'] / MIB:.0f} -> {after['memory_available_bytes'] / MIB:.0f} MiB"
        for rank, before in sorted(arms[0].items())
        if (after := arms[1].get(rank)) is not None
    ]


def _failed_boot(boot: Record) -> str:
    return str(
        TrisparkError(
            "TS-TRIAL-BOOT",
            "a boot of the trial is not valid",
            where=str(boot["boot_id"]),
            expected="every gate passed",
            observed=str(boot["outcome"]["reason"]),
            remedy="read the kept logs of that boot",
        )
    )


def _undecided(record: Record, boots: Sequence[Record], failed: Sequence[Record]) -> list[str]:
    """What to do after a trial that decided nothing; then each command on a line of its own, to be copied."""
    requested, site = record["requested"], record["site"]
    given = ["--site", site, *feature_arguments(requested["feature"], requested.get("value"))]
    again = " ".join(["./trispark play", playbook_of(requested["stage"]), *given])
    if failed:
        return [f"read the kept logs of {failed[0]['boot_id']}, then try again:", f"  {again}"]
    ids = [str(boot["boot_id"]) for boot in boots[:2]]
    look = [f"  ./trispark records diff {' '.join(ids)} --site {site}"] if len(ids) == 2 else []
    shows = "; the second command shows what two of the boots ran" if look else ""
    if len(boots) <= 2:
        return [f"keep the baseline; six boots an arm can decide{shows}:", f"  {again} -e boots=6", *look]
    return [f"keep the baseline; try again with what the reason names{shows}:", f"  {again}", *look]


def rollback(record: Record, path: str) -> Report:
    """Seconds from the first look at the nodes to the last gate."""
    seconds = record["timings"]["phases"]["total"]
    generation = record["resolved"]["generation"]
    verified = record["outcome"]["state"] == "valid"
    published = {"seconds": seconds, "verified": verified, "generation": generation, "record": path}
    return Report([f"{generation} serves again and passed its gates after {seconds} s"], {"rollback": published})


def status(results: Mapping[str, Mapping[str, Any]]) -> Report:
    """Each node's own answer, or that it cannot be reached or does not answer in time, or what its agent refused or
    failed with.

    `results`: what the task with the agent's verb `status` registered, by node.
    """
    nodes: dict[str, Any] = {}
    for node, result in results.items():
        answer = result.get("answer") or {}
        message = " ".join(str(result.get("msg", "no answer")).split())
        if result.get("unreachable") or not result or result.get("check_id") == LATE:
            nodes[node] = {"reachable": False, "reason": message}
        elif answer.get("ok"):
            nodes[node] = {"reachable": True, **answer}
        else:
            nodes[node] = {"reachable": True, "error": message}
    fleet = judge(nodes).as_dict()
    return Report(list(status_lines(nodes)), {"status": {"fleet": fleet, "nodes": nodes}})


def node_states(published: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What `status` published, by node: `reachable`, and the agent's answer, or `reason` or `error` in its place."""
    nodes = (published.get("status") or {}).get("nodes") or {}
    return {str(node): dict(state) for node, state in nodes.items()}


def node_answers(published: Mapping[str, Any]) -> dict[str, Mapping[str, Any] | None]:
    """The same for who needs answers alone: {node: answer}, None for a node that gave none."""
    states = node_states(published)
    return {node: state if state["reachable"] and "error" not in state else None for node, state in states.items()}
