"""Two groups of recorded boots side by side, after the fact: ratios and intervals, never a verdict.

Whoever chooses boots after having seen them can make any change look good; a verdict needs a trial that was planned
before its boots. So what is said here is by how much the groups differ, what the boots allow to say of that, and in
what else than the metrics they differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from trispark.drift import Drift
from trispark.errors import TrisparkError
from trispark.noise_floor import SiteNoise
from trispark.record_diff import diff_records
from trispark.records import FIRST_BOOT
from trispark.trial_metrics import boot_metrics
from trispark.verdict import BootMetrics, decide

LEVEL: Final = 0.95
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """One metric: medians of both groups, second over first, and the 95 % interval of the ratio.

    `low` and `high` are None where a group has one boot alone, or the boots do not differ at all. `sd`: of one boot, by
    the site's kept noise, None without; two boots of one configuration differ by 2.8 times as much in one pair of 20.
    """

    first: float
    second: float
    ratio: float | None
    low: float | None
    high: float | None
    sd: float | None


@dataclass(frozen=True)
class BootComparison:
    """`first`, `second`: boot ids; `left_out`: {id: why}; `differences`: between the newest boots of both groups."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    left_out: dict[str, str]
    metrics: dict[str, Difference]
    differences: dict[str, list[Drift]]

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def choose_boots(names: str, records: Sequence[Record], older: Sequence[Sequence[Record]] = ()) -> list[Record]:
    """Boot records by what a person wrote: numbers, boot ids or generations, with commas between; oldest first.

    A generation stands for all of its measured boots. `older`: chains of nodes that were made anew, the newest first;
    what `records` do not have is taken from them, never by number. Raises TS-COMPARE-BOOT for what is no boot here.
    """
    chains = [records, *older]
    chosen: dict[str, Record] = {}
    for name in (part.strip() for part in names.split(",")):
        found = next((boots for chain in chains if (boots := _named(name, chain, numbers=chain is records))), [])
        if not name or not found:
            raise _no_boot(names, name, chains)
        chosen |= {str(each["boot_id"]): each for each in found}
    age = [str(each["boot_id"]) for chain in reversed(chains) for each in chain if each["kind"] == "boot"]
    return [chosen[boot_id] for boot_id in dict.fromkeys(age) if boot_id in chosen]


def _named(name: str, chain: Sequence[Record], *, numbers: bool) -> list[Record]:
    boots = [record for record in chain if record["kind"] == "boot"]
    found = [each for each in boots if name == each["boot_id"] or (numbers and name == str(each["seq"]))]
    return found or [each for each in boots if each["resolved"]["generation"] == name and each["bench"]]


def _no_boot(names: str, name: str, chains: Sequence[Sequence[Record]]) -> TrisparkError:
    """A trial is named as one, with what its boots are asked by."""
    numbered = [record for record in chains[0] if name == str(record["seq"])]
    others = numbered or [record for chain in chains for record in chain if name == record["id"]]
    observed = name[:80] or "nothing between two commas"
    remedy = "./trispark records list" if any(chains) else f"there are no boots yet: {FIRST_BOOT}"
    if name and others:
        trial = str(others[0]["id"])
        boots = ", ".join(str(boot["boot_id"]) for boot in others[0].get("boots") or ())
        observed = f"{name[:80]}, the trial {trial}"
        remedy = f"./trispark report {trial} shows that trial" + (f"; its boots: {boots}" if boots else "")
    return TrisparkError(
        "TS-COMPARE-BOOT",
        "that is a trial and no boot" if name and others else "there is no such boot",
        where=names[:80],
        expected="numbers or ids of boots, or generations with measured boots, with commas between",
        observed=observed,
        remedy=remedy,
    )


def compare_boots(first: Sequence[Record], second: Sequence[Record], noise: SiteNoise | None = None) -> BootComparison:
    """Raises TS-COMPARE-EMPTY for a group without a valid, measured boot, and TS-VERDICT-PROTOCOL, -CORPUS, -BOOT and
    -VALUE for groups that cannot be compared."""
    groups = [[boot_metrics(record) for record in records] for records in (first, second)]
    left_out = {boot.boot_id: _why_not(boot) for group in groups for boot in group if not _usable(boot)}
    used = [[boot for boot in group if _usable(boot)] for group in groups]
    for given, group in zip((first, second), used, strict=True):
        if not group:
            raise TrisparkError(
                "TS-COMPARE-EMPTY",
                "nothing was measured in a group of boots",
                where=", ".join(str(record["boot_id"]) for record in given)[:200],
                expected="a valid boot with a measurement in both groups",
                observed="; ".join(left_out[str(record["boot_id"])] for record in given)[:200],
                remedy="name other boots; ./trispark records list shows which are valid",
            )
    before, after = used
    ratios = decide(before, after).differences
    metrics = {name: _difference(name, before, after, ratio.ratio, noise) for name, ratio in ratios.items()}
    newest = [
        next(record for record in reversed(records) if record["boot_id"] == group[-1].boot_id)
        for records, group in zip((first, second), used, strict=True)
    ]
    names = [tuple(boot.boot_id for boot in group) for group in used]
    return BootComparison(names[0], names[1], left_out, metrics, diff_records(*newest))


def _usable(boot: BootMetrics) -> bool:
    return boot.counts and bool(boot.metrics)


def _why_not(boot: BootMetrics) -> str:
    if not boot.valid:
        return "not valid"
    rules = ", ".join(check.rule for check in boot.checks if check.status == "failed")
    return f"failed {rules}" if rules else "not measured"


def _difference(
    name: str,
    first: Sequence[BootMetrics],
    second: Sequence[BootMetrics],
    ratio: float | None,
    noise: SiteNoise | None,
) -> Difference:
    import numpy as np

    from trispark.boot_statistics import welch

    values = [np.array([boot.metrics[name] for boot in group]) for group in (first, second)]
    medians = [float(np.median(each)) for each in values]
    kept = None if noise is None else noise.metrics.get(name)
    low = high = None
    if min(len(first), len(second)) > 1 and all((each > 0).all() for each in values):
        found = welch(np.log(values[0]), np.log(values[1]))
        # The ratio of medians is for reading; interval and its middle are of the logarithms' means, as in a trial.
        if not bool(found.exact):
            low, high = (math.exp(float(each)) for each in found.interval(LEVEL))
            ratio = math.exp(float(found.estimate))
    return Difference(medians[0], medians[1], ratio, low, high, None if kept is None else kept.sd)
