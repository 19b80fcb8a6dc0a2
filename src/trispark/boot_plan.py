"""What one boot is to do, as one JSON object that the playbooks carry from task to task.

A plan is made from the catalog (`plan_arm`) or from what the nodes hold (`plan_stored`, a rollback). Both give:
    boot_id, time (UTC), started (seconds since the epoch), epoch, purpose, site
    requested {stage, feature, value, arm, purpose}, base (features that both arms hold because the tried one needs
    them), baseline and generation (ids), changed {setting: [baseline, candidate]}
    resolved (the hashed configuration), adapters {path: text, or base64 of a library}
    nodes {name: {rank, spec, files, awaited}}; awaited are patterns that this rank's log must come to show
    patterns (of all log lines that are judged)
    serving (whether all ranks run a healthy boot of it already)
    layers (with an Engram table), worker_ranks, canary {request}, batch {requests}, quality {requests} (short set)
    bench {rank, image, input of the load client}, None when nothing is measured
    site_facts {name: request of `site-set`}, empty where the site's files cannot be read
    provenance [images.attestation.Fact]: what was judged of its images, empty where the site demands no signature
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from trispark.adapters import carried
from trispark.allowlist import Value
from trispark.bench_plan import client_input
from trispark.canonical import generation_id
from trispark.catalog import Catalog, load_catalog
from trispark.confirm import parts_of, with_confirmation
from trispark.errors import TrisparkError
from trispark.gates import canary_request, judged_patterns
from trispark.images.demanded import KNOWN_ALREADY, judged, recorded
from trispark.node_site import node_requests
from trispark.plan import plan_budget, unsafe
from trispark.preflight import refuse_damage, require_nodes
from trispark.promoted import Promoted, on_nodes, settings_of
from trispark.quality.short import short_requests
from trispark.records import RecordCache
from trispark.resolve import Resolution, compare, resolve, resolve_arms, restore
from trispark.site import Site, load_site
from trispark.stage_playbook import is_confirmation
from trispark.warmup import batch_requests

BENCH_RANK: Final = 1
ANOTHER_GENERATION: Final = "go back to another generation: ./trispark play rollback -e rollback_to=ID"
Arm = Literal["baseline", "candidate"]

Answers = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Moment:
    """The time and the randomness that a boot id is made of; given, so that tests can fix them."""

    now: datetime
    token: str

    @classmethod
    def current(cls) -> Moment:
        return cls(datetime.now(UTC), secrets.token_hex(2))

    @property
    def boot_id(self) -> str:
        """`b20260102T030405Z-a1b2`: sorts by time, and two controllers in the same second differ."""
        return f"b{self.now:%Y%m%dT%H%M%SZ}-{self.token}"

    @property
    def trial_id(self) -> str:
        """`t...`: the same for a trial."""
        return f"t{self.boot_id[1:]}"

    @property
    def utc(self) -> str:
        return f"{self.now:%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True)
class _Arms:
    base: tuple[str, ...]
    baseline: Resolution
    candidate: Resolution
    check: Resolution | None = None


@dataclass(frozen=True)
class Project:
    """The controller's data: root of the tree, site and catalog."""

    root: Path
    site: Site
    catalog: Catalog

    @classmethod
    def load(cls, root: Path, site_name: str) -> Project:
        """Raises TS-SITE-*, TS-CATALOG-*, TS-YAML-*. That images are missing is said when one is needed."""
        site = load_site(root / "inventory" / site_name, images="optional")
        return cls(root, site, load_catalog(root).on(site.engine))


def next_epoch(statuses: Answers) -> int:
    """One more than any node has seen, so that no older container can join. `statuses`: {node: answer of `status`}.

    A node whose epoch file is damaged still shows the epoch of its engine.
    """
    seen = [epoch for status in statuses.values() for epoch in (status, status.get("engine") or {})]
    return max((int(each.get("epoch") or 0) for each in seen), default=0) + 1


def is_serving(statuses: Answers, generation: str, ranks: int) -> bool:
    """Whether all ranks run one healthy boot of `generation`, so that a converge has nothing to start."""
    engines = [status.get("engine") or {} for status in statuses.values()]
    boots = {(engine.get("boot_id"), engine.get("epoch")) for engine in engines}
    return (
        len(engines) == ranks
        and len(boots) == 1
        and all(
            engine.get("state") == "running"
            and engine.get("health") == "ready"
            and engine.get("generation") == generation
            for engine in engines
        )
        and all(status.get("current") == generation for status in statuses.values())
    )


def require_given(
    project: Project, *, stage: str, feature: str, misplaced: Mapping[str, str], seen_site: Mapping[str, Any]
) -> None:
    """What can be refused before any node is asked or prepared, by the same words as when the boot is planned.

    Raises TS-FEATURE-*, TS-STAGE-*, and what misplaced variables and other values of the site are refused with.
    """
    project.catalog.refuse_misplaced(misplaced)
    project.site.refuse_other_values(seen_site)
    _require_no_trial(project, stage, feature)


def _require_no_trial(project: Project, stage: str, feature: str) -> None:
    """A stage without trials has no feature of its own to try."""
    if stage and not is_confirmation(stage) and not project.catalog.stages[project.catalog.stage_letter(stage)].trial:
        project.catalog.select(stage, feature or None, project.site.engine)


def plan_arm(
    project: Project,
    *,
    stage: str,
    feature: str,
    value: str = "",
    arm: Arm | Literal[""],
    purpose: str,
    trial: str,
    measure: bool,
    statuses: Answers,
    misplaced: Mapping[str, str],
    seen_site: Mapping[str, Any],
    moment: Moment,
    slot: int | None = None,
    planned: str = "",
    check: bool = False,
) -> dict[str, Any]:
    """The plan of a baseline or a candidate boot.

    The baseline is the site's own, as its nodes hold it. In a trial it is that of the feature: it holds what the
    feature requires, so that one change is left. Without an `arm`, a feature asks for the candidate. `value` is that of
    a sweep, `slot` the boot's place in its trial, `planned` the generation that the trial's plan names for it; with
    `check` a candidate compares results, as features want it that have such a boot.

    `stage` may be empty for a plain boot, or `confirm`, whose baseline is the shipped one; `trial` may be empty outside
    a trial; `misplaced` are variables given by `-e` or the inventory whose names look like catalog keys; `seen_site`
    are the site's variables as the playbooks see them, which must be those of its files.

    Where the site names a memory model, its verdict `unsafe` refuses the boot; not one that brings back what served
    before a trial.

    Raises TS-FEATURE-*, TS-STAGE-*, TS-PLAN-*, TS-ENV-*, TS-PREFLIGHT-STATE, TS-BASELINE-DIFFERS, TS-BUDGET-*,
    TS-CONFIRM-*, and TS-PROVENANCE-* where the site demands that its images are signed.
    """
    arm = arm or ("candidate" if feature else "baseline")
    require_given(project, stage="", feature="", misplaced=misplaced, seen_site=seen_site)
    require_nodes(project.site, statuses)
    for node, status in sorted(statuses.items()):
        refuse_damage(node, status)
    project, held = _compared(project, stage, purpose, on_nodes(statuses))
    selected: str | None = None
    if arm == "candidate" or (arm == "baseline" and purpose == "trial" and feature):
        selected = _selected(project, stage, feature)
    else:
        _require_no_trial(project, stage, feature)
    arms = _arms(project, selected, value, held)
    resolution = arms.candidate if arm == "candidate" else arms.baseline
    if check and arms.check is not None:
        resolution = arms.check
    if planned and resolution.id != planned:
        raise TrisparkError(
            "TS-PLAN-CHANGED",
            f"the {arm} is not the planned one any more",
            where=f"trial {trial or 'unnamed'}",
            expected=planned,
            observed=resolution.id,
            remedy="do not edit the project or the site during a trial; plan again and start anew",
        )
    if purpose != "restore":
        _judge_memory(project, resolution, arm, None if arm == "baseline" else arms.baseline.settings)
    proven = _proven(project, resolution, purpose, measure=measure)
    plan = _plan(resolution, purpose, statuses, moment)
    difference = compare(arms.baseline, resolution)
    plan.update(
        bench=bench_part(project.site, project.root) if measure else None,
        requested={
            "stage": stage or None,
            "feature": selected if arm == "candidate" else None,
            "value": value or None if arm == "candidate" else None,
            "arm": arm,
            "purpose": purpose,
            "slot": slot,
            "trial": trial or None,
        },
        baseline=arms.baseline.id,
        baseline_resolved=arms.baseline.resolved,
        base=list(arms.base),
        changed={name: list(pair) for name, pair in difference.settings.items()},
        adapters=carried(resolution.adapters),
        site_facts=node_requests(project.site),
        provenance=proven,
    )
    return plan


def _proven(project: Project, resolution: Resolution, purpose: str, *, measure: bool) -> list[dict[str, Any]]:
    """What brings production back after a trial ran before: it needs no signature anew, its records have the fact."""
    site, root = project.site, project.root
    images = [str(resolution.resolved["image"]), *([site.require_bench_image()] if measure else [])]
    if purpose in KNOWN_ALREADY:
        records = RecordCache(root / ".trispark" / site.name / "records").list() if site.image_signers else []
        return recorded(images, records)
    return judged(root, site, images)


def _compared(
    project: Project, stage: str, purpose: str, promoted: Promoted | None
) -> tuple[Project, Mapping[str, Value]]:
    """The project, and by what the baseline of this boot differs from the shipped one.

    In a confirmation the catalog has the bundle, and nothing is held besides. The boot that brings the site's own
    baseline back needs neither.
    """
    held = settings_of(promoted, project.catalog)
    if not is_confirmation(stage) or purpose == "restore":
        return project, held
    last, last_hash = ("", "") if promoted is None else (promoted.record, promoted.record_hash)
    records = RecordCache(project.root / ".trispark" / project.site.name / "records").list()
    parts = parts_of(held, last, last_hash, project.catalog, records)
    return replace(project, catalog=with_confirmation(project.catalog, held, parts)), {}


def _judge_memory(project: Project, resolution: Resolution, arm: Arm, back_to: Mapping[str, Value] | None) -> None:
    judged = plan_budget(project.root, project.site, resolution.settings, project.catalog, back_to)
    if judged is not None and judged.verdict == "unsafe":
        raise unsafe(judged, arm, project.site.memory_model)


def _arms(project: Project, feature: str | None, value: str, promoted: Mapping[str, Value]) -> _Arms:
    site, catalog, root = project.site, project.catalog, project.root
    if feature is None:
        baseline = resolve(site, catalog, None, None, root, promoted=promoted)
        return _Arms((), baseline, baseline)
    arms = resolve_arms(site, catalog, feature, None, root, value=value or None, promoted=promoted)
    return _Arms(arms.base, arms.baseline, arms.candidate, arms.check)


def _selected(project: Project, stage: str, feature: str) -> str | None:
    """A stage decides what may be tried; a plain boot of a candidate needs a feature that can be run."""
    catalog = project.catalog
    if stage:
        selected = catalog.select(stage, feature or None, project.site.engine)
        if selected is not None:
            catalog.require_available(selected, project.site.engine)
        return selected
    if not feature:
        can = [name for name, entry in catalog.features.items() if entry.refusal_on(project.site.engine) is None]
        raise TrisparkError(
            "TS-FEATURE-MISSING",
            "no feature given",
            where="a candidate outside a stage",
            expected=f"one of: {', '.join(can)}",
            observed="nothing",
            remedy=f"-e feature={can[0]}" if can else "this version has no feature",
        )
    catalog.require_available(feature, project.site.engine)
    return feature


def plan_stored(
    *,
    purpose: str,
    stored: Answers,
    statuses: Answers,
    moment: Moment,
    site_facts: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The plan of a rollback to what every node holds, or of a look at what is current.

    `stored`: {node: answer of `generation-show`}. Nothing of the controller's tree is read, so a broken tree does not
    stop a rollback; `site_facts` may be left out. Raises TS-ROLLBACK-DIFFERS when the nodes' copies differ,
    TS-ROLLBACK-HASH when a copy is not what its id says; for a look TS-VERIFY-NONE and TS-VERIFY-DIFFERS.
    """
    if purpose == "verify":
        require_one_current(statuses)
    copies = {node: generation_id(answer["resolved"]) for node, answer in stored.items()}
    if len(set(copies.values())) != 1:
        raise TrisparkError(
            "TS-ROLLBACK-DIFFERS",
            "the nodes hold different configurations under one id",
            where=", ".join(sorted({str(answer["generation"]) for answer in stored.values()})),
            expected="one hash",
            observed=", ".join(f"{node} {copy}" for node, copy in sorted(copies.items())),
            remedy=ANOTHER_GENERATION,
        )
    first = next(iter(stored.values()))
    resolution = restore(first["resolved"])
    for node, answer in stored.items():
        if answer["generation"] != resolution.id:
            raise TrisparkError(
                "TS-ROLLBACK-HASH",
                "the stored configuration does not have the hash that its id says",
                where=node,
                expected=str(answer["generation"]),
                observed=resolution.id,
                remedy=ANOTHER_GENERATION,
            )
    plan = _plan(resolution, purpose, statuses, moment)
    plan.update(
        bench=None,
        requested={"stage": None, "feature": None, "arm": None, "purpose": purpose, "trial": None},
        baseline=None,
        changed={},
        adapters={},
        site_facts=dict(site_facts or {}),
        provenance=_agreed([answer.get("provenance") for answer in stored.values()]),
    )
    return plan


def _agreed(facts: Sequence[Mapping[str, Any] | None]) -> list[dict[str, Any]]:
    """What every node knows of the image's provenance; nodes that differ, or know nothing, hold up no way back."""
    first = facts[0]
    return [dict(first)] if first is not None and all(fact == first for fact in facts) else []


def require_one_current(statuses: Answers) -> str:
    """The generation that is current on every node. `statuses`: {node: answer of `status`}.

    Raises TS-VERIFY-NONE when a node has none, TS-VERIFY-DIFFERS when they have different ones.
    """
    currents = {node: status.get("current") for node, status in sorted(statuses.items())}
    without = [node for node, current in currents.items() if not current]
    if without or not currents:
        raise TrisparkError(
            "TS-VERIFY-NONE",
            "no generation is current, there is nothing to verify",
            where=", ".join(without) or "all nodes",
            expected="a generation that was booted",
            observed=", ".join(f"{node} {current or 'none'}" for node, current in currents.items()) or "no node",
            remedy="./trispark play site boots the baseline",
        )
    if len(set(currents.values())) > 1:
        raise TrisparkError(
            "TS-VERIFY-DIFFERS",
            "the nodes have different current generations",
            where=", ".join(currents),
            expected="one generation on all nodes",
            observed=", ".join(f"{node} {current}" for node, current in currents.items()),
            remedy="./trispark play rollback makes one current everywhere, or ./trispark play site the baseline",
        )
    return str(next(iter(currents.values())))


def _plan(resolution: Resolution, purpose: str, statuses: Answers, moment: Moment) -> dict[str, Any]:
    return {
        "boot_id": moment.boot_id,
        "time": moment.utc,
        "started": moment.now.timestamp(),
        "epoch": next_epoch(statuses),
        "purpose": purpose,
        "serving": is_serving(statuses, resolution.id, len(resolution.nodes)),
        "site": resolution.resolved["site"],
        "generation": resolution.id,
        "resolved": resolution.resolved,
        "nodes": {
            name: {
                "rank": rank,
                "spec": resolution.specs[name],
                "files": resolution.files.get(name, {}),
                "awaited": [rule.pattern for rule in resolution.evidence if rule.must_appear and rank in rule.ranks],
            }
            for rank, name in resolution.nodes.items()
        },
        "patterns": judged_patterns(resolution),
        "layers": resolution.resolved["gates"]["layers"],
        "worker_ranks": [rank for rank in resolution.nodes if rank != 0],
        "canary": {"request": canary_request(resolution)},
        "batch": {"requests": batch_requests(resolution.resolved)},
        "quality": {"requests": short_requests(resolution.resolved)},
    }


def bench_part(site: Site, root: Path) -> dict[str, Any]:
    """The measurement: which rank sends the load, from which image, and the load client's input.

    Never the head: the client's work would slow the engine that it measures.
    """
    return {
        "rank": BENCH_RANK,
        "image": site.require_bench_image(),
        "input": client_input(site, root),
    }


def table_rows(plan: Mapping[str, Any], shards: Answers) -> dict[int, int]:
    """{layer: rows of the whole table}: the end row of the last rank's shard, as that node read it from the checkpoint.

    `shards`: {node: answer of the agent's verb `engram`}. Raises TS-GATE-SHARDS when the last rank's answer is missing.
    """
    last = max(plan["nodes"].items(), key=lambda item: int(item[1]["rank"]))[0]
    files = (shards.get(last) or {}).get("files") or []
    rows = {int(file["layer"]): int(file["end_row"]) for file in files}
    if not set(plan["layers"]) <= set(rows):
        raise TrisparkError(
            "TS-GATE-SHARDS",
            "the sizes of the Engram tables are not known",
            where=last,
            expected=f"verified shards of layers {', '.join(map(str, plan['layers']))}",
            observed=f"layers {', '.join(map(str, sorted(rows))) or 'none'}",
            remedy="run shards.yml",
        )
    return rows


def owned_rows(shards: Answers) -> dict[str, dict[int, tuple[int, int]]]:
    """{node: {layer: (first row, end row)}} of the nodes' verified shards, whatever layout divides the rows."""
    return {
        node: {
            int(file["layer"]): (int(file["first_row"]), int(file["end_row"]))
            for file in (answer or {}).get("files") or ()
        }
        for node, answer in shards.items()
    }
