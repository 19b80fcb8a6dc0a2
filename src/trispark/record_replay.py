"""How to repeat what a record tells of: the plan from today's tree, when every pinned input is still the same.

A boot is repeatable when the tree resolves to the very generation of the record again: image by digest, adapters by
hash, settings, node variables. What was measured is compared too: prompts by hash, load client by digest. Each input
that is gone or differs is named (TS-RECORD-REPLAY).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trispark.bench_plan import bench_input, client_input, input_changes
from trispark.drift import Drift, in_words, resolved_drift
from trispark.errors import TrisparkError
from trispark.plan import NO_IMAGE, Ground, plan_on
from trispark.records import resolved_part
from trispark.resolve import Arms, Resolution, resolve, resolve_arms
from trispark.stage_playbook import feature_arguments, playbook_of

Record = Mapping[str, Any]
NAMED: Final = 12
"""How many differing inputs a line names."""


def replay(root: Path, site_name: str, record: Record, records: Sequence[Record]) -> dict[str, Any]:
    """{"record", "kind", "generation", "arm", "slot", "plan", "command", "notes"}.

    `command` are arguments of ./trispark. `records`: all of the site's cache, in which a boot's trial is looked up.
    Raises TS-RECORD-REPLAY, and what `Ground.load` raises.
    """
    ground = Ground.load(root, site_name)
    if record["site"] != site_name:
        raise _refused(record, [Drift("resolved", "site", record["site"], site_name)])
    if record["requested"]["overrides"]:
        raise _refused(
            record, [Drift("requested", f"override {name}", value, None) for name, value in _overrides(record)]
        )
    asked = _asked(record, records)
    try:
        ground = ground.for_stage(asked["stage"] or "")
        now = _resolve(ground, asked)
    except TrisparkError as error:
        raise _refused(record, [Drift("resolved", "the catalog", "could be resolved", str(error))]) from None
    differences = _trial_inputs(ground, record, records, now) if record["kind"] == "trial" else []
    if record["kind"] == "boot":
        differences = _boot_inputs(ground, record, _side(ground, now, asked["arm"], record))
    if differences:
        raise _refused(record, differences)
    plan = plan_on(ground, asked["stage"] or _plain_stage(ground), asked["feature"], asked["value"])
    notes = []
    if record["kind"] == "boot" and record["requested"]["trial"]:
        notes.append("the boot gets a record of its own and belongs to no trial")
    return {
        "record": record["id"],
        "kind": record["kind"],
        "generation": record["resolved"].get("generation"),
        "arm": asked["arm"],
        "slot": record["requested"].get("slot"),
        "plan": plan,
        "command": _command(record, asked, check=record["kind"] == "boot" and _is_check(ground, now, record)),
        "notes": notes,
    }


def _overrides(record: Record) -> list[tuple[str, str]]:
    return sorted(record["requested"]["overrides"].items())


def _asked(record: Record, records: Sequence[Record]) -> dict[str, Any]:
    """Stage, feature, value and arm that lead to the record's generation again.

    A baseline boot of a trial names no feature, but holds what the trial's feature requires; a rollback names nothing,
    its generation is that of an earlier boot.
    """
    requested = record["requested"]
    asked = {name: requested.get(name) for name in ("stage", "feature", "value", "arm")}
    if record["kind"] == "trial" or asked["arm"] == "candidate":
        return asked
    for other in records:
        theirs = other["requested"]
        same_trial = requested.get("trial") is not None and theirs.get("trial") == requested["trial"]
        if asked["arm"] == "baseline" and requested["purpose"] == "trial" and same_trial and theirs.get("feature"):
            return {**asked, "feature": theirs["feature"], "value": theirs.get("value")}
        earlier = other["kind"] == "boot" and other["resolved"]["generation"] == record["resolved"].get("generation")
        if asked["arm"] is None and earlier and theirs.get("arm") is not None:
            return _asked(other, records)
    return {**asked, "arm": "baseline"}


def _resolve(ground: Ground, asked: Mapping[str, Any]) -> Arms | Resolution:
    site, catalog, root = ground.site, ground.catalog, ground.root
    if asked["feature"] is None:
        return resolve(site, catalog, None, None, root, promoted=ground.promoted)
    return resolve_arms(site, catalog, asked["feature"], None, root, value=asked["value"], promoted=ground.compared)


def _side(ground: Ground, now: Arms | Resolution, arm: str, boot: Record | None) -> Resolution:
    """The configuration of today that the record of `boot` is compared with."""
    if isinstance(now, Resolution):
        return now
    if now.check is not None and _is_check(ground, now, boot):
        return now.check
    return now.candidate if arm == "candidate" else now.baseline


def _is_check(ground: Ground, now: Arms | Resolution, boot: Record | None) -> bool:
    """Whether it was the boot that compares results: a record says so by its settings alone."""
    if boot is None or isinstance(now, Resolution) or boot["requested"]["arm"] != "candidate":
        return False
    checked, settings = ground.catalog.check_settings(now.choice.feature), boot["resolved"]["settings"]
    return bool(checked) and all(settings.get(name) == value for name, value in checked.items())


def _boot_inputs(ground: Ground, record: Record, now: Resolution) -> list[Drift]:
    """Pinned inputs of a boot that are gone or differ."""
    found: list[Drift] = []
    resolved = resolved_part(ground.catalog.allowlist, now)
    if ground.image == NO_IMAGE:
        found.append(Drift("resolved", "image", record["resolved"]["image"], None))
        resolved["image"] = record["resolved"]["image"]
    found += resolved_drift(record["resolved"], resolved)
    generation = record["resolved"]["generation"]
    if not found and now.id != generation:
        found.append(Drift("resolved", "launch options, gates or a hidden value", generation, now.id))
    return found + _bench_inputs(ground, record)


def _bench_inputs(ground: Ground, record: Record) -> list[Drift]:
    if not record["bench"]:
        return []
    then, planned = record["bench"]["input"], client_input(ground.site, ground.root)
    now = bench_input({"rank": then["rank"], "image": ground.site.bench_image, "input": planned})
    return [Drift("bench", f"measurement: {name}", *pair) for name, pair in input_changes(then, now).items()]


def _trial_inputs(ground: Ground, record: Record, records: Sequence[Record], now: Arms | Resolution) -> list[Drift]:
    """Pinned inputs of a trial, by those of its first boot of each arm where these are in the cache."""
    by_seq = {other["seq"]: other for other in records}
    found: list[Drift] = []
    for arm in ("baseline", "candidate"):
        boots = [by_seq[boot["seq"]] for boot in record["boots"] if boot["arm"] == arm and boot["seq"] in by_seq]
        side = _side(ground, now, arm, boots[0] if boots else None)
        if boots:
            found += [drift for drift in _boot_inputs(ground, boots[0], side) if drift not in found]
        elif ground.image == NO_IMAGE:
            found.append(Drift("resolved", "image", f"that of {record['resolved'][arm]}", None))
        elif side.id != record["resolved"][arm]:
            found.append(Drift("resolved", f"generation of the {arm}", record["resolved"][arm], side.id))
    return found


def _plain_stage(ground: Ground) -> str:
    """A stage without trials: its plan is that of a boot of the baseline."""
    return next(letter for letter, stage in ground.catalog.stages.items() if not stage.trial)


def _command(record: Record, asked: Mapping[str, Any], *, check: bool) -> list[str]:
    """Arguments of ./trispark; `check`: of a boot that compares results. A boot of a trial is repeated as one, so that
    it never counts as good."""
    requested, site = record["requested"], ["--site", record["site"]]
    feature = [] if asked["feature"] is None else ["-e", f"feature={asked['feature']}"]
    feature += [] if asked["value"] is None else ["-e", f"value={asked['value']}"]
    if record["kind"] == "trial":
        return ["play", playbook_of(asked["stage"]), *site, *feature_arguments(asked["feature"], asked["value"])]
    if requested["purpose"] == "rollback":
        return ["play", "rollback", *site, "-e", f"rollback_to={record['resolved']['generation']}"]
    given = ["-e", f"boot_arm={asked['arm']}", "-e", f"boot_purpose={requested['purpose']}"]
    given += [] if asked["stage"] is None else ["-e", f"boot_stage={asked['stage']}"]
    given += ["-e", "boot_check=true"] if check else []
    given += ["-e", "boot_bench=true"] if record["bench"] else []
    return ["play", "boot", *site, *given, *feature]


def _refused(record: Record, differences: Sequence[Drift]) -> TrisparkError:
    named = [
        f"{each.name} is gone (it was {in_words(each.first)})"
        if each.second is None
        else f"{each.name} was {in_words(each.first)}, is {in_words(each.second)}"
        for each in differences
    ]
    more = f"; and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return TrisparkError(
        "TS-RECORD-REPLAY",
        f"{record['id']} cannot be repeated, {differences[0].name} is gone or differs",
        where=f"record {record['seq']}",
        expected="the inputs of the record",
        observed="; ".join(named[:NAMED]) + more,
        remedy=f"check out the commit of the record ({record['project']['commit'] or 'not known'}), or boot what the "
        "nodes still hold with rollback_to=ID",
    )
