"""What trials of a site can find, by how its equal boots differ: simulated with the rules that its plans get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from trispark.decision import Code, decide_trials
from trispark.decision_rules import DecisionRules, better
from trispark.noise_floor import SIZES, SiteNoise
from trispark.noise_model import NoiseModel
from trispark.stats_simulate import SEED, block_pattern, standard_rules

TRIALS: Final = 4_000
STEPS: Final = tuple(step / 400 for step in range(1, 161))
"""Effects that are tried, up to 40 %; the first that is found often enough is given."""


@dataclass(frozen=True)
class PowerRow:
    """One metric as the only primary. `gain`: the least that is kept in 80 % of trials; `slow_down`: the least that is
    REJECT with HARM in 95 %; None above 40 %."""

    metric: str
    boots: int
    sd: float
    floor: float | None
    gain: float | None
    slow_down: float | None

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def site_power(noise: SiteNoise) -> list[PowerRow]:
    """A row a metric that decides somewhere and size of a trial. Waits are no primaries and have none."""
    rows = []
    for metric, found in noise.metrics.items():
        if metric.endswith("_us_per_lookup"):
            continue
        for size in SIZES:
            floor = noise.floor(metric, size)
            rules = _rules(metric, size, floor)
            rows.append(PowerRow(metric, size, found.sd, floor, *_search(rules, found.sd)))
    return rows


def _rules(metric: str, size: int, floor: float | None) -> DecisionRules:
    rules = standard_rules(1, boots=size)
    primary = rules.primaries[0].model_copy(update={"metric": metric, "better": better(metric), "floor": floor})
    return rules.model_copy(update={"primaries": (primary,)})


def _search(rules: DecisionRules, sd: float) -> tuple[float | None, float | None]:
    def least(enough: Callable[[float], bool]) -> float | None:
        low, high = 0, len(STEPS)
        while low < high:
            middle = (low + high) // 2
            if enough(STEPS[middle]):
                high = middle
            else:
                low = middle + 1
        return STEPS[low] if low < len(STEPS) else None

    return (
        least(lambda effect: _Shares.at(rules, sd, effect).keep >= 0.80),
        least(lambda effect: _Shares.at(rules, sd, -effect).harm >= 0.95),
    )


@dataclass(frozen=True)
class _Shares:
    keep: float
    harm: float

    @classmethod
    def at(cls, rules: DecisionRules, sd: float, effect: float) -> _Shares:
        """`sd` holds what a boot's own repetitions add; the effect is one of logarithms."""
        model = NoiseModel(boot_sd=sd, within_sd=(0.0,), order=block_pattern(rules.boots))
        arms = model.draw(np.random.default_rng([SEED, rules.boots]), TRIALS, [effect])
        code = decide_trials(*arms, rules).code
        return cls(float((code == Code.KEEP).mean()), float((code == Code.HARM).mean()))
