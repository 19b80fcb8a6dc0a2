"""The section of one trial that says where the time of a decode step, of row lookups and of a boot went."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Final

from trispark.report.measured import ARMS, BootRow, Measured, waits_of
from trispark.report.page import Block, Section, Text, table
from trispark.report.words import NONE, number

NO_STEPS: Final = "The records have no breakdown of a step: neither the engine's counters nor its decode lines say it."


def time_section(trial: Measured, prefix: str) -> Section:
    """As far as the records say; that they do not is said."""
    blocks: list[Block] = []
    steps = [_steps(trial.of_arm(arm)) for arm in ARMS]
    if tags := sorted({*steps[0], *steps[1]}):
        rows = [
            (tag, *(number(arm.get(tag, {}).get(name)) for name in ("counters", "lines", "tokens") for arm in steps))
            for tag in tags
        ]
        columns = (
            "load", "#ms by counters, baseline", "#ms by counters, candidate", "#ms by decode lines, baseline",
            "#ms by decode lines, candidate", "#tokens a step, baseline", "#tokens a step, candidate",
        )  # fmt: skip
        caption = "A decode step by load: how long it takes, seen from both sides, and what it commits to a request"
        blocks.append(table(f"{prefix}steps-table", caption, columns, rows))
    else:
        blocks.append(Text(NO_STEPS, "muted"))
    waits = [_waits(trial.of_arm(arm)) for arm in ARMS]
    keys = sorted({*waits[0], *waits[1]})
    if keys:
        rows_of_waits = [
            (key[0], key[1], *(number(arm[key][part]) if key in arm else NONE for part in (0, 1) for arm in waits))
            for key in keys
        ]
        columns_of_waits = ("load", "layer", "#waited s, baseline", "#waited s, candidate", "#µs a lookup, baseline",
                   "#µs a lookup, candidate")  # fmt: skip
        caption = "Of it, rank 0's waits for Engram rows, medians over the counted boots"
        blocks.append(table(f"{prefix}waits-table", caption, columns_of_waits, rows_of_waits))
    phases = [_phases(trial.of_arm(arm)) for arm in ARMS]
    names = list(dict.fromkeys([*phases[0], *phases[1]]))
    if names:
        rows_of_phases = [(name.replace("_", " "), *(number(arm.get(name)) for arm in phases)) for name in names]
        caption = "Phases of a boot in seconds, medians over the counted boots"
        blocks.append(table(f"{prefix}phases-table", caption, ("phase", "#baseline", "#candidate"), rows_of_phases))
    return Section(f"{prefix}time", "Where the time went", tuple(blocks))


def _steps(boots: Sequence[BootRow]) -> dict[str, dict[str, float]]:
    """{load: {"counters", "lines": milliseconds; "tokens": committed a step}}, medians; what is not known is left out.

    Of step_time.StepCheck and bench_windows.WindowCheck.
    """
    seen: dict[str, dict[str, list[float]]] = {}
    for boot in boots:
        bench = boot.record["bench"] or {}
        given: list[tuple[str, Any, Any, float]] = []
        for each in bench.get("steps") or ():
            given.append(("counters", each.get("tag"), each.get("from_counters_s"), 1e3))
            given.append(("lines", each.get("tag"), each.get("from_lines_s"), 1e3))
        for each in bench.get("checks") or ():
            given.append(("tokens", each.get("tag"), each.get("tokens_per_step"), 1.0))
        for name, tag, value, factor in given:
            if isinstance(value, int | float) and not isinstance(value, bool):
                seen.setdefault(str(tag), {}).setdefault(name, []).append(factor * value)
    return {tag: {name: statistics.median(values) for name, values in each.items()} for tag, each in seen.items()}


def _waits(boots: Sequence[BootRow]) -> dict[tuple[str, str], tuple[float, float | None]]:
    seen: dict[tuple[str, str], list[Any]] = {}
    for boot in boots:
        for tag, layers in waits_of(boot.record).items():
            for layer, wait in layers.items():
                seen.setdefault((tag, layer), []).append(wait)
    found = {}
    for key, each in seen.items():
        known = [wait.wait_us_per_lookup for wait in each if wait.wait_us_per_lookup is not None]
        found[key] = (statistics.median(wait.wait_s for wait in each), statistics.median(known) if known else None)
    return found


def _phases(boots: Sequence[BootRow]) -> dict[str, float]:
    seen: dict[str, list[float]] = {}
    for boot in boots:
        for name, seconds in boot.record["timings"]["phases"].items():
            seen.setdefault(str(name), []).append(float(seconds))
    return {name: statistics.median(values) for name, values in sorted(seen.items())}
