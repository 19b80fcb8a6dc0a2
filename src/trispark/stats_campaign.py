"""The arms of a campaign that was made by hand, one boot an arm, compared pair by pair as this project would.

Reads a summary: a row an arm and tag with the median over the boot's repetitions (columns `arm`, `tag`,
`decode_tps_median`, `agg_tps_median`). One boot an arm has no interval of its own. What is shown is how far two boots
of one configuration lie apart in the same campaign: it says what a difference would have to beat, and decides nothing.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trispark.errors import TrisparkError
from trispark.verdict import BootMetrics, decide

RATES: Final = ("decode_tps_median", "agg_tps_median")
COVERS: Final = 0.95


@dataclass(frozen=True)
class Pair:
    """Two arms: verdict, and by metric the ratio with the interval that two boots of one configuration allow."""

    baseline: str
    candidate: str
    verdict: str
    code: str
    reason: str
    ratios: dict[str, tuple[float, float, float]]


@dataclass(frozen=True)
class Campaign:
    """`twins`: the arms of one configuration; `boot_sd`: what they say, with `freedom` degrees of freedom."""

    arms: tuple[str, ...]
    twins: tuple[str, str]
    boot_sd: float
    freedom: int
    pairs: tuple[Pair, ...]


def read_summary(path: Path) -> dict[str, dict[str, float]]:
    """{arm: {metric: tokens a second}}. Raises TS-STATS-SUMMARY for another file."""
    arms: dict[str, dict[str, float]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                column = next(name for name in RATES if row[name])
                metric = f"{row['tag']}.{column.removesuffix('_median')}"
                arms.setdefault(row["arm"], {})[metric] = float(row[column])
    except (OSError, KeyError, ValueError, StopIteration, UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(path, f"{type(error).__name__}: {error}"[:200]) from None
    if len(arms) < 2:
        raise _unreadable(path, f"{len(arms)} arms")
    return arms


def compare_campaign(arms: Mapping[str, Mapping[str, float]], twins: tuple[str, str]) -> Campaign:
    """Every pair of arms, the earlier one as baseline. `twins`: two boots of one configuration.

    Raises TS-STATS-TWINS when they are not there, and what a verdict refuses.
    """
    if not set(twins) <= set(arms) or twins[0] == twins[1]:
        raise TrisparkError(
            "TS-STATS-TWINS",
            "the two boots of one configuration are not in the campaign",
            where="--twins",
            expected=f"two of {', '.join(arms)}",
            observed=" ".join(twins),
            remedy="name two arms that ran the same configuration",
        )
    shared = sorted(set(arms[twins[0]]) & set(arms[twins[1]]))
    differences = [math.log(arms[twins[1]][name] / arms[twins[0]][name]) for name in shared]
    # Half of a squared difference of two equal boots is the variance of one.
    sd = math.sqrt(sum(each * each for each in differences) / (2 * len(differences)))
    half = _quantile(len(differences)) * sd * math.sqrt(2.0)
    names = list(arms)
    pairs = [_pair(arms, before, after, half) for index, before in enumerate(names) for after in names[index + 1 :]]
    return Campaign(tuple(names), twins, sd, len(differences), tuple(pairs))


def campaign_lines(campaign: Campaign) -> list[str]:
    """A table for a person, in Markdown."""
    metrics = sorted({name for pair in campaign.pairs for name in pair.ratios})
    lines = [
        f"boot sd {100 * campaign.boot_sd:.2f} % by {' and '.join(campaign.twins)}, one for all of {campaign.freedom} "
        f"metrics; in brackets the {100 * COVERS:.0f} % interval that it gives two single boots",
        "",
        f"| baseline | candidate | verdict | {' | '.join(metrics)} |",
        "|---" * (3 + len(metrics)) + "|",
    ]
    for pair in campaign.pairs:
        cells = [_cell(pair.ratios.get(name)) for name in metrics]
        lines.append(f"| {pair.baseline} | {pair.candidate} | {pair.verdict} ({pair.code}) | {' | '.join(cells)} |")
    return lines


def _pair(arms: Mapping[str, Mapping[str, float]], before: str, after: str, half: float) -> Pair:
    verdict = decide([BootMetrics(before, True, arms[before])], [BootMetrics(after, True, arms[after])])
    ratios = {}
    for name, ratio in verdict.differences.items():
        if ratio.ratio is not None:
            ratios[name] = (ratio.ratio, ratio.ratio * math.exp(-half), ratio.ratio * math.exp(half))
    return Pair(before, after, verdict.verdict, verdict.code, verdict.reason, ratios)


def _quantile(freedom: int) -> float:
    # Here, because most verbs start without scipy.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + COVERS / 2))


def _cell(ratio: Sequence[float] | None) -> str:
    if ratio is None:
        return "not in both"
    middle, low, high = (100 * (each - 1) for each in ratio)
    return f"{middle:+.1f} % [{low:+.1f}, {high:+.1f}]"


def _unreadable(path: Path, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-STATS-SUMMARY",
        "this is no summary of a campaign",
        where=str(path),
        expected="a CSV file with arm, tag, decode_tps_median and agg_tps_median, two arms at least",
        observed=observed,
        remedy="see src/trispark/stats_campaign.py for its columns",
    )


def as_form(campaign: Campaign) -> dict[str, Any]:
    """JSON form."""
    return {
        "arms": list(campaign.arms),
        "twins": list(campaign.twins),
        "boot_sd": campaign.boot_sd,
        "freedom": campaign.freedom,
        "pairs": [
            {
                "baseline": pair.baseline,
                "candidate": pair.candidate,
                "verdict": pair.verdict,
                "code": pair.code,
                "reason": pair.reason,
                "ratios": {
                    name: dict(zip(("ratio", "low", "high"), each, strict=True)) for name, each in pair.ratios.items()
                },
            }
            for pair in campaign.pairs
        ],
        "keep": sum(pair.verdict == "KEEP" for pair in campaign.pairs),
    }
