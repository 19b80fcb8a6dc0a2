"""The figures of a report: a dot a boot, and the interval of each metric. Places only; styles are the template's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trispark.report.page import Figure, Mark
from trispark.report.words import effect, mean_of_logs, number, share, span, unit

LEFT: Final = 3.0
RIGHT: Final = 97.0
DOT_STEP: Final = 11
ARM_HEAD: Final = 24
AXIS: Final = 26
ROW: Final = 46
ARMS: Final = ("baseline", "candidate")
Boots = Sequence[tuple[str, float]]
"""(boot id, value), in the order in which they ran."""


@dataclass(frozen=True)
class Scale:
    """From values to per cent of a figure's width."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float]) -> Scale:
        """Around all values, with room at both ends."""
        low, high = min(values), max(values)
        room = (high - low) * 0.08 or abs(high) * 0.01 or 1.0
        return cls(low - room, high + room)

    def at(self, value: float) -> float:
        """Per cent, with two decimals; a value outside is put to the end."""
        part = min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
        return round(LEFT + part * (RIGHT - LEFT), 2)

    def ticks(self, most: int = 5) -> list[float]:
        """Round values within, at most so many."""
        raw = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * each for each in (1, 2, 5, 10) if power * each >= raw * (1 - 1e-9))
        first = math.ceil(self.low / step)
        return [float(f"{index * step:.10g}") for index in range(first, math.floor(self.high / step) + 1)]


def dots(id: str, metric: str, better: str, arms: Mapping[str, Boots], floor: float | None) -> Figure | None:
    """One metric: a row an arm, in it a dot a boot, the first boot uppermost. None without any value.

    `floor`: the share by which equal arms differ, drawn around the baseline's mean.
    """
    values = [value for boots in arms.values() for _, value in boots]
    if not values:
        return None
    means = {arm: mean_of_logs([value for _, value in arms.get(arm, ())]) for arm in ARMS}
    base = means["baseline"]
    band = None if floor is None or base is None else (base * (1 - floor), base * (1 + floor))
    scale = Scale.over([*values, *(band or ())])
    bottom = sum(ARM_HEAD + DOT_STEP * max(1, len(arms.get(arm, ()))) for arm in ARMS) + 8
    marks: list[Mark] = []
    if band is not None:
        said = f"floor: {share(floor)} around the baseline's mean"
        marks.append(Mark("band", "floor", scale.at(band[0]), 0, scale.at(band[1]), bottom, said))
    marks += _axis(scale, bottom, "")
    y = 0
    for arm in ARMS:
        boots = arms.get(arm, ())
        mean = means[arm]
        said = f"{arm}, mean {number(mean)}" if mean is not None else f"{arm}, no value" if not boots else arm
        marks.append(Mark("label", "arm", 0, y + 13, text=said))
        y += ARM_HEAD
        height = DOT_STEP * max(1, len(boots))
        if mean is not None:
            marks.append(Mark("line", f"mean {arm}", scale.at(mean), y - 6, scale.at(mean), y + height - 4, said))
        for place, (boot, value) in enumerate(boots):
            marks.append(Mark("dot", arm, scale.at(value), y + place * DOT_STEP + 1, text=f"{boot}: {number(value)}"))
        y += height
    said = "; ".join(f"{arm} {', '.join(number(value) for _, value in arms.get(arm, ())) or 'none'}" for arm in ARMS)
    note = ", ".join(part for part in (unit(metric), f"{better} is better") if part)
    return Figure(id, metric, f"A dot a boot: {said}.", bottom + AXIS, tuple(marks), note=note)


def effects(id: str, metrics: Sequence[Mapping[str, Any]], floors: Mapping[str, float | None]) -> Figure:
    """Candidate over baseline: a row a metric with estimate and interval (record_model.JudgedMetric), floor band, and
    the marks that it has to pass: least effect of a primary, margin of each."""
    rows = [_row(each, floors.get(each["metric"])) for each in metrics]
    scale = Scale.over([0.0, *(value for row in rows for value in row.values())])
    bottom = ROW * len(rows) + 4
    marks: list[Mark] = []
    for index, (each, row) in enumerate(zip(metrics, rows, strict=True)):
        top, middle = index * ROW, index * ROW + 32
        if "floor" in row:
            ends = scale.at(-row["floor"]), scale.at(row["floor"])
            said = f"floor of this site: {share(floors[each['metric']])}"
            marks.append(Mark("band", "floor", ends[0], top + 20, ends[1], top + 44, said))
        for name in ("margin", "least"):
            if name in row:
                x = scale.at(row[name])
                said = f"{name.replace('least', 'least effect')}: {row[name]:+.3g} %"
                marks.append(Mark("line", name, x, top + 22, x, top + 42, said))
        found = each["welch"]
        look = each["state"].replace(" ", "-")
        if "low" in row:
            marks.append(Mark("line", f"interval {look}", scale.at(row["low"]), middle, scale.at(row["high"]), middle))
        marks.append(Mark("dot", look, scale.at(row["middle"]), middle, text=f"{each['metric']}: {each['state']}"))
        marks.append(Mark("label", "metric", 0, top + 14, text=str(each["metric"])))
        said = f"{effect(found['ratio'])}, {each['state']}"
        marks.append(Mark("label", "value", 100, top + 14, text=said, anchor="end"))
    marks = [Mark("line", "zero", scale.at(0.0), 18, scale.at(0.0), bottom), *_axis(scale, bottom, " %"), *marks]
    said = "; ".join(f"{each['metric']} {effect(each['welch']['ratio'])} ({span(each['welch'])})" for each in metrics)
    legend = [("interval", "estimate and 95 % interval"), ("least", "least effect"), ("margin", "margin of harm")]
    if any("floor" in row for row in rows):
        legend.append(("floor", "floor: what equal arms of this site differ by"))
    title = "Candidate over baseline, by metric"
    return Figure(id, title, f"Estimate and 95 % interval: {said}.", bottom + AXIS, tuple(marks), tuple(legend))


def _row(each: Mapping[str, Any], floor: float | None) -> dict[str, float]:
    """Per cent of one metric."""
    found, sign = each["welch"], 1.0 if each["better"] == "higher" else -1.0
    row = {"middle": 100 * (found["ratio"] - 1), "margin": -sign * 100 * each["margin"]}
    if found["low"] is not None and found["high"] is not None:
        row |= {"low": 100 * (found["low"] - 1), "high": 100 * (found["high"] - 1)}
    if each["least"] is not None:
        row["least"] = sign * 100 * each["least"]
    if floor is not None:
        row["floor"] = 100 * floor
    return row


def _axis(scale: Scale, y: float, suffix: str) -> list[Mark]:
    marks = [Mark("line", "axis", LEFT, y, RIGHT, y)]
    for tick in scale.ticks():
        x = scale.at(tick)
        marks.append(Mark("line", "tick", x, 18 if suffix else 0, x, y + 4))
        marks.append(Mark("label", "tick", x, y + 18, text=f"{tick:g}{suffix}", anchor="middle"))
    return marks
