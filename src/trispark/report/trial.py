"""The sections of one trial that say what was decided, what was changed and what was measured."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trispark.errors import TrisparkError
from trispark.report.figures import dots, effects
from trispark.report.measured import ARMS, BootRow, Measured
from trispark.report.page import Banner, Block, Cell, Commands, Facts, Figure, Figures, Section, Table, Text, table
from trispark.report.words import (
    CODES,
    CONFIRMED,
    DECISIONS,
    NONE,
    STATES,
    TONES,
    effect,
    mean_of_logs,
    number,
    probability,
    setting,
    share,
    span,
)
from trispark.reporting import confirmation_lines
from trispark.stage_playbook import feature_arguments, playbook_of
from trispark.verdict import decide

ENGINE_OF_THE_LAB: Final = "lab"
STATES_SAID: Final = (
    'A state "open" is no news: neither a gain nor a harm is shown. "Not worse" is only said where the plan has the '
    "power to show it."
)
DOTS_SAID: Final = "A dot is a boot. Within an arm the first boot is uppermost; the upright line is the geometric mean."
FLOOR_SAID: Final = " The band is the floor around the baseline's mean: what equal arms of this site differ by."
NO_FIGURES: Final = "No counted boot has a measured value."


def label_of(found: Mapping[str, Any]) -> str:
    """`wo_a`, or `block_size=5`, of what was asked for."""
    feature, value = found.get("feature") or "baseline", found.get("value")
    return str(feature) if value is None else f"{feature}={value}"


def requested_of(trial: Measured) -> Mapping[str, Any]:
    """What was asked for: of the trial's record, else of its boots."""
    if trial.record is not None:
        return dict(trial.record["requested"])
    asked = [boot.record["requested"] for boot in trial.boots if boot.record["requested"]["purpose"] == "trial"]
    named = [each for each in asked if each.get("feature")]
    return dict((named or asked or [{}])[0])


def banner_of(trial: Measured) -> Banner:
    """The verdict with its reason, or that there is none yet."""
    if trial.record is None:
        why = "No boot of it has left a record." if not trial.boots else f"{len(trial.boots)} boots have left a record."
        if trial.source.ended is not None:
            because = f" It ended because: {trial.source.ended}" if trial.source.ended else ""
            said = "The trial ended before any of its changes was tried, so nothing is decided."
            return Banner("NO VERDICT", "NOT TRIED", said, why + because, "open")
        return Banner("NO VERDICT", "UNFINISHED", "The trial has not ended, so nothing is decided.", why, "open")
    outcome = trial.outcome
    verdict, code = str(outcome["verdict"]), str(outcome.get("code") or "")
    decisions = CONFIRMED if trial.record["resolved"].get("confirms") else DECISIONS
    sentence = " ".join(part for part in (CODES.get(code, ""), decisions[verdict]) if part)
    return Banner(verdict, code, sentence, str(outcome["reason"]), TONES[verdict])


def images_of(boots: Sequence[BootRow]) -> list[tuple[str, Cell]]:
    """The engine image that all boots ran, or that of each arm where an image is what was tried."""
    by_arm = {boot.arm: str(boot.record["resolved"]["image"]) for boot in boots}
    if len(set(by_arm.values())) == 1:
        return [("Image", Cell(next(iter(by_arm.values())), code=True))]
    return [(f"Image of the {arm}", Cell(by_arm[arm], code=True)) for arm in ARMS if arm in by_arm]


def summary_section(trial: Measured, prefix: str) -> Section:
    """Who, what and when, and what a reader has to know before any number."""
    asked, record = requested_of(trial), trial.record
    first = next((boot.record for boot in trial.boots), None)
    items: list[tuple[str, Cell]] = [("Trial", Cell(trial.source.key, code=True))]
    items.append(("Stage and feature", Cell(f"{asked.get('stage') or NONE}, {label_of(asked)}")))
    counts = " + ".join(str(len(trial.of_arm(arm))) for arm in ARMS)
    if record is None:
        items.append(("Measured boots so far", Cell(f"{counts}; which of them count is said with the verdict")))
    else:
        planned = "" if trial.rules is None else f" of {trial.rules.boots} + {trial.rules.boots} planned"
        invalid = sum(boot.counted and not boot.valid for boot in trial.boots)
        items.append(("Counted boots", Cell(f"{counts}{planned}" + (f", {invalid} not valid" if invalid else ""))))
    if record is not None:
        items += [(arm.capitalize(), Cell(str(record["resolved"][arm]), code=True)) for arm in ARMS]
        items.append(("Serves afterwards", Cell(record["outcome"]["restored"] or "not known", code=True)))
        items.append(("Began and ended", Cell(f"{record['timings']['started_at']} to {record['timings']['ended_at']}")))
    if first is not None:
        items.append(("Engine", Cell(str(first["resolved"]["engine"]))))
        items += images_of(trial.boots)
    blocks: list[Block] = [Facts(tuple(items))]
    if first is not None and first["resolved"]["engine"] == ENGINE_OF_THE_LAB:
        said = (
            "Measured with the lab's miniature engine: it shows that a mechanism acts, and says nothing about a Spark."
        )
        blocks.append(Text(said, "open", notice=True))
    if record is None and trial.source.ended is None:
        blocks.append(Text("The trial has not ended: there is no verdict, and what follows may change.", "open", True))
    if not trial.boots:
        blocks.append(Text("There is no record of a boot of this trial.", "open", notice=True))
    return Section(f"{prefix}summary", "Summary", tuple(blocks))


def changed_section(trial: Measured, prefix: str) -> Section:
    """Settings with their value in both arms."""
    changed = _changed(trial)
    rows = [
        (Cell(name, code=True), *(Cell(setting(pair.get(arm)), code=True) for arm in ARMS))
        for name, pair in sorted(changed.items())
    ]
    blocks: list[Block] = []
    if rows:
        caption = "Settings that differ between the arms, before and after"
        blocks.append(table(f"{prefix}changed-table", caption, ("setting", "baseline", "candidate"), rows))
    else:
        blocks.append(Text("No setting that may be recorded differs between the arms.", "muted"))
    if trial.record is not None and (parts := trial.record["resolved"].get("confirms") or ()):
        caption = "Promotions that make this difference; the baseline is the shipped one"
        columns = ("trial", "feature", "settings")
        found = [
            (Cell(part["record"], code=True), label_of(part), Cell(", ".join(part["keys"]), code=True))
            for part in parts
        ]
        blocks += [
            table(f"{prefix}confirms-table", caption, columns, found),
            Text(confirmation_lines(trial.record)[-1]),
        ]
    return Section(f"{prefix}changed", "What changed", tuple(blocks))


def _changed(trial: Measured) -> Mapping[str, Mapping[str, Any]]:
    if trial.record is not None:
        return dict(trial.record["resolved"]["changed"])
    arms = {arm: boots[0].record for arm in ARMS if (boots := trial.of_arm(arm, counted=False))}
    if len(arms) < 2:
        return {}
    old, new = (arms[arm]["resolved"]["settings"] for arm in ARMS)
    names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    return {name: {"baseline": old.get(name), "candidate": new.get(name)} for name in names}


def speed_section(trial: Measured, prefix: str) -> Section:
    """Intervals, floor band, a dot a boot, the other tests beside, and the mechanism."""
    blocks: list[Block] = []
    detail = trial.detail
    if detail is not None:
        ends = "it ended the trial" if detail["ends"] else "it did not end the trial"
        look = f"The look at {detail['boots']} + {detail['boots']} boots"
        blocks.append(Text(f"{look} decides, one-sided level {share(detail['level'])} over all primaries; {ends}."))
        floors = {name: trial.floor(name) for name in trial.metrics}
        blocks.append(effects(f"{prefix}effects-figure", detail["metrics"], floors))
        blocks += [_effects_table(trial, detail["metrics"], prefix), Text(STATES_SAID, "muted")]
        blocks.append(_beside_table(detail["metrics"], prefix))
        if detail["mechanism"]:
            blocks.append(_mechanism_table(detail["mechanism"], prefix))
        primaries = [each["metric"] for each in detail["metrics"] if each["role"] == "primary"]
        if any(floors.get(name) is None for name in primaries):
            said = "The plan has no floor of this site for its primaries: ./trispark stats floor measures one."
            blocks.append(Text(said, "muted"))
    elif trial.record is not None:
        blocks.append(Text("No look of the plan was reached, so there is no interval.", "muted"))
    figures = [
        figure
        for index, metric in enumerate(trial.metrics)
        if (figure := _dots(trial, metric, f"{prefix}dots-{index}")) is not None
    ]
    if figures:
        floor = any(mark.shape == "band" for figure in figures for mark in figure.marks)
        blocks += [
            Text(DOTS_SAID + (FLOOR_SAID if floor else ""), "muted"),
            Figures(tuple(figures)),
            _values_table(trial, prefix),
        ]
    else:
        blocks.append(Text(NO_FIGURES, "muted"))
    differences = trial.outcome.get("differences") or {}
    if differences:
        rows = [
            (Cell(name, code=True), number(each["baseline"]), number(each["candidate"]), effect(each["ratio"]))
            for name, each in sorted(differences.items())
        ]
        columns = ("metric", "#baseline", "#candidate", "#difference")
        caption = "All metrics: medians over the counted boots (differences to read, no gains)"
        blocks.append(table(f"{prefix}all-table", caption, columns, rows, folded=True))
    return Section(f"{prefix}speed", "Speed", tuple(blocks))


def _dots(trial: Measured, metric: str, id: str) -> Figure | None:
    watched = () if trial.rules is None else trial.rules.watched
    better = next((str(each.better) for each in watched if each.metric == metric), None)
    if better is None:
        better = "lower" if metric.endswith(("_s", "_us_per_lookup")) else "higher"
    return dots(id, metric, better, {arm: trial.values(metric, arm) for arm in ARMS}, trial.floor(metric))


def _effects_table(trial: Measured, metrics: Sequence[Mapping[str, Any]], prefix: str) -> Table:
    rows = [
        (
            Cell(each["metric"], code=True),
            each["role"],
            each["better"],
            number(mean_of_logs(list(each["baseline"]))),
            number(mean_of_logs(list(each["candidate"]))),
            effect(each["welch"]["ratio"]),
            span(each["welch"]),
            probability(each["p"]),
            share(each["least"]),
            share(trial.floor(each["metric"])),
            share(each["margin"]),
            Cell(each["state"], STATES.get(each["state"], "")),
        )
        for each in metrics
    ]
    columns = ("metric", "role", "better", "#baseline", "#candidate", "#effect", "#95 % interval (Welch t)",
               "#p of no gain", "#least effect", "#floor", "#margin", "state")  # fmt: skip
    caption = "Primaries and guards at the look that decides; means are geometric, p of primaries is Holm's"
    return table(f"{prefix}effects-table", caption, columns, rows)


def _beside_table(metrics: Sequence[Mapping[str, Any]], prefix: str) -> Table:
    def cells(found: Mapping[str, Any]) -> tuple[str, str]:
        covers = "" if found["covers"] is None else f" at {100 * found['covers']:.1f} %"
        return effect(found["ratio"]), span(found) + covers

    rows = [
        (
            Cell(each["metric"], code=True),
            *cells(each["paired"]),
            *cells(each["hodges_lehmann"]),
            ", ".join(number(value) for value in each["outliers"]) or NONE,
        )
        for each in metrics
    ]
    columns = ("metric", "#paired t", "#interval", "#Hodges-Lehmann", "#interval", "outliers")
    caption = "Other tests beside: they do not decide, and outliers are never left out"
    return table(f"{prefix}beside-table", caption, columns, rows)


def _mechanism_table(mechanism: Sequence[Mapping[str, Any]], prefix: str) -> Table:
    said = {
        True: Cell("moved as declared", "good"),
        False: Cell("did not move", "bad"),
        None: Cell("not measured", "open"),
    }
    rows = [
        (Cell(each["metric"], code=True), each["goes"], number(each["baseline"]), number(each["candidate"]),
         probability(each["p"]), said[each["moved"]])
        for each in mechanism
    ]  # fmt: skip
    columns = ("metric", "should go", "#baseline", "#candidate", "#p", "state")
    return table(f"{prefix}mechanism-table", "Mechanism: what the feature declares to move", columns, rows)


def _values_table(trial: Measured, prefix: str) -> Table:
    counted = [boot for boot in trial.boots if boot.counted]
    rows = [
        (Cell(boot.id, code=True), boot.arm, *(number(boot.values.get(metric)) for metric in trial.metrics))
        for boot in counted
    ]
    columns = ("boot", "arm", *(f"#{metric}" for metric in trial.metrics))
    caption = "Values of each counted boot, in the order in which they ran: medians over its repetitions"
    return table(f"{prefix}values-table", caption, columns, rows)


def reproduce_section(trial: Measured, prefix: str) -> Section:
    """The tree, the plan and the commands that repeat it."""
    record, asked = trial.record, requested_of(trial)
    first = record if record is not None else next((boot.record for boot in trial.boots), None)
    if first is None:
        return Section(f"{prefix}reproduce", "How to reproduce", (Text("Nothing was recorded.", "muted"),))
    project, site = first["project"], str(first["site"])
    plan = None if record is None else record["resolved"].get("plan")
    commit = f"{project['commit'] or 'not known'}{', with changes that are not committed' if project['dirty'] else ''}"
    items = (
        ("Plan", Cell(str(plan) if plan else "not in the record", code=bool(plan))),
        ("Version", Cell(f"trispark {project['version']}")),
        ("Commit", Cell(commit, code=True)),
    )
    given = feature_arguments(str(asked.get("feature")), asked.get("value"))
    given += [] if trial.rules is None else ["-e", f"boots={trial.rules.boots}"]
    stage = str(asked.get("stage"))
    lines = [
        shlex.join(["./trispark", "plan", stage, "--site", site, *given]),
        shlex.join(["./trispark", "play", playbook_of(stage), "--site", site, *given]),
    ]
    if record is not None:
        lines.insert(0, shlex.join(["./trispark", "records", "replay", str(record["id"]), "--site", site]))
    lines.append(shlex.join(["./trispark", "report", trial.source.key, "--site", site]))
    label = "What the record pins, the plan, the trial, this report"
    return Section(f"{prefix}reproduce", "How to reproduce", (Facts(items), Commands(label, tuple(lines))))


def recomputed(trial: Measured) -> Cell:
    """The verdict worked out once more from the boots' records; a record that says something else is pointed at.

    A trial that ended early, or whose boots could not be compared, has no verdict of its boots alone.
    """
    if trial.record is None or trial.detail is None or trial.rules is None:
        return Cell("not worked out again: no look was reached", "muted")
    if trial.outcome.get("code") in ("ENDED", "INCOMPARABLE"):
        return Cell("not worked out again: the trial did not end by its rules", "muted")
    arms = [[boot.metrics for boot in trial.of_arm(arm) if boot.metrics is not None] for arm in ARMS]
    try:
        found = decide(arms[0], arms[1], trial.rules)
    except TrisparkError as error:
        return Cell(f"DIFFERS: the boots are refused now: {error}", "bad")
    said = f"{found.verdict} {found.code}"
    same = (found.verdict, found.code) == (trial.outcome["verdict"], trial.outcome.get("code"))
    detail = trial.detail
    values = (
        [] if found.detail is None else [(list(each.baseline), list(each.candidate)) for each in found.detail.metrics]
    )
    same = same and values == [(list(each["baseline"]), list(each["candidate"])) for each in detail["metrics"]]
    return Cell(f"the same: {said}", "good") if same else Cell(f"DIFFERS: the boots give {said}", "bad")
