"""The rules by which a trial is decided, fixed before its first boot: part of the plan and so covered by its id.

Effects are natural logarithms of candidate over baseline, turned so that more is better; margins and minimum effects
are shares (0.01 is one per cent). docs/statistics.md gives the reasons for every number here.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Protocol

from pydantic import Field, model_validator

from trispark.catalog_model import Direction, Feature, Movement
from trispark.plainyaml import Strict

Share = Annotated[float, Field(gt=0, lt=0.5)]
Level = Annotated[float, Field(gt=0, lt=0.5)]

BOOTS_PER_ARM: Final = (1, 2, 4, 6)
"""Counted boots an arm that a trial can plan. One and two are too few for a look: such a trial never decides."""
LOOKS: Final[Mapping[int, tuple[tuple[int, float], ...]]] = {
    1: (),
    2: (),
    4: ((4, 0.022),),
    6: ((4, 0.007), (6, 0.018)),
}
"""{planned boots an arm: ((boots an arm, one-sided level over all primaries), ...)}."""
INTERVAL: Final = 0.95
HARM_LEVEL: Final = 0.025
NO_GAIN_LEVEL: Final = 0.025
MECHANISM_LEVEL: Final = 0.025
MINIMUM_EFFECT: Final = 0.01
RATE_MARGIN: Final = 0.01
TIME_MARGIN: Final = 0.05
CLAIM_POWER: Final = 0.8
FUTILE_AT_MOST: Final = 0.0


def better(metric: str) -> Direction:
    """Times (`…_s`, `…_us_per_lookup`) are better when lower, rates when higher."""
    return "lower" if metric.endswith(("_s", "_us_per_lookup")) else "higher"


def gain_of_share(share: float, direction: Direction) -> float:
    """An improvement by `share` as an effect: a rate of 1 + share, a time of 1 - share of what it was."""
    return math.log1p(share) if direction == "higher" else -math.log1p(-share)


def harm_of_share(share: float, direction: Direction) -> float:
    """A harm by `share` as an effect, which is negative: a rate of 1 - share, a time of 1 + share of what it was."""
    return math.log1p(-share) if direction == "higher" else -math.log1p(share)


class Look(Strict):
    """The first `boots` counted boots of each arm are judged, at a one-sided level over all primaries together."""

    boots: Annotated[int, Field(ge=2)]
    level: Level


class Futility(Strict):
    """A look that ends the trial, undecided, when the estimate of every primary is at most this effect."""

    boots: Annotated[int, Field(ge=2)]
    estimate_at_most: float


class Watched(Strict):
    """One metric that decides or that must not suffer. `margin`: the harm that is too much."""

    metric: str
    better: Direction
    margin: Share


class Primary(Watched):
    """`minimum_effect`: an estimate below it is never KEEP; `floor`: what two equal arms of this site differ by
    (trispark.noise_floor), None where no boots of equal arms were looked at."""

    minimum_effect: Share
    floor: Share | None = None

    @property
    def least(self) -> float:
        """The least effect that can be kept."""
        return gain_of_share(max(self.minimum_effect, self.floor or 0.0), self.better)


class Guard(Watched):
    """`claimed`: whether the last look has the power to show that the harm is below the margin."""

    claimed: bool = False


class DecisionRules(Strict):
    """All of it. `boots`: counted boots an arm; `order`: of the arms, a block each (A baseline, B candidate);
    `control`: whether the measurement is tried, so that there is nothing to keep."""

    version: Literal[1] = 1
    unit: Literal["boot"] = "boot"
    value: Literal["log of the median over the repetitions of a boot"] = (
        "log of the median over the repetitions of a boot"
    )
    test: Literal["Welch t, one-sided, Holm over the primaries"] = "Welch t, one-sided, Holm over the primaries"
    boots: Annotated[int, Field(ge=1)]
    order: tuple[Annotated[str, Field(pattern=r"^(AB|BA|ABBA|BAAB)$")], ...]
    looks: tuple[Look, ...]
    interval: Annotated[float, Field(gt=0.5, lt=1)] = INTERVAL
    harm_level: Level = HARM_LEVEL
    no_gain_level: Level = NO_GAIN_LEVEL
    mechanism_level: Level = MECHANISM_LEVEL
    futility: Futility | None = None
    primaries: tuple[Primary, ...] = Field(min_length=1)
    guards: tuple[Guard, ...] = ()
    mechanism: tuple[Movement, ...] = ()
    control: bool = False

    @model_validator(mode="after")
    def _fits(self) -> DecisionRules:
        sizes = [look.boots for look in self.looks]
        names = [each.metric for each in self.watched]
        if sizes != sorted(set(sizes)) or any(size > self.boots for size in sizes):
            raise ValueError("looks go up, and none is past the last boot")
        if len(set(names)) != len(names):
            raise ValueError("a metric is watched twice")
        if self.futility is not None and self.futility.boots not in sizes[:-1]:
            raise ValueError("only a look before the last can be futile")
        return self

    @property
    def watched(self) -> tuple[Watched, ...]:
        """Primaries, then guards."""
        return (*self.primaries, *self.guards)

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> DecisionRules:
        """From its JSON form. Raises ValueError (pydantic's) for another one."""
        return cls.model_validate_json(json.dumps(value))

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return self.model_dump(mode="json")


class Noise(Protocol):
    """What is known of how equal boots of the site differ."""

    def floor(self, metric: str, boots: int) -> float | None:
        """The share by which equal arms of so many boots differ in one of twenty trials; None when not measured."""

    def shows_no_harm(self, metric: str, boots: int, margin: float) -> bool:
        """Whether so many boots an arm show, with the power of CLAIM_POWER, that a harm is below the margin."""


def block_order(boots: int, seed: str) -> tuple[str, ...]:
    """The blocks of a trial: the baseline goes first, later blocks follow the seed, so that no drift favours an arm.

    One boot an arm is no block; its order is AB.
    """
    if boots == 1:
        return ("AB",)
    bits = hashlib.sha256(f"block order {seed}".encode()).digest()
    return tuple("BAAB" if block and bits[block % len(bits)] & 1 else "ABBA" for block in range(boots // 2))


def rules_for(entry: Feature, boots: int, seed: str, noise: Noise | None = None) -> DecisionRules:
    """The rules of a trial of a catalog entry with so many counted boots an arm. `noise`: of the site, if measured."""
    looks = tuple(Look(boots=size, level=level) for size, level in LOOKS[boots])
    last = looks[-1].boots if looks else boots

    def margin(metric: str) -> float:
        default = TIME_MARGIN if better(metric) == "lower" else RATE_MARGIN
        return float(entry.margins.get(metric, default))

    return DecisionRules(
        boots=boots,
        order=block_order(boots, seed),
        looks=looks,
        futility=Futility(boots=looks[0].boots, estimate_at_most=FUTILE_AT_MOST) if len(looks) > 1 else None,
        primaries=tuple(
            Primary(
                metric=metric,
                better=better(metric),
                margin=margin(metric),
                minimum_effect=MINIMUM_EFFECT,
                floor=None if noise is None else noise.floor(metric, last),
            )
            for metric in entry.primaries
        ),
        guards=tuple(
            Guard(
                metric=metric,
                better=better(metric),
                margin=margin(metric),
                claimed=noise is not None and noise.shows_no_harm(metric, last, margin(metric)),
            )
            for metric in entry.guards
        ),
        mechanism=entry.moves,
        control=entry.control,
    )


def arms_of(order: Sequence[str]) -> list[Literal["baseline", "candidate"]]:
    """The arm of every counted boot, in their order."""
    return ["baseline" if letter == "A" else "candidate" for block in order for letter in block]
