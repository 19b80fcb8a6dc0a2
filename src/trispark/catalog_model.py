"""What the files of the catalog hold, each value checked by itself; `catalog_check` checks them together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator, model_validator

from trispark.allowlist import NAME, Value, format_value, require_expression
from trispark.bench_windows import WINDOW
from trispark.benchstats import ENGRAM_WAIT, GAPS, ONE_STREAM, STREAMS
from trispark.plainyaml import Strict

DIRECTORY: Final = "experiments"
STAGES: Final = ("a", "b", "c", "d", "e", "f", "g")
_CONTEXT: Final = r"(-[a-z0-9_]+)?"
_MANY: Final = r"([2-9]|[1-9][0-9]+)"
_ONE_STREAM: Final = rf"(c1-[a-z0-9_]+{_CONTEXT}|mixed-c1)"
_STREAMS: Final = rf"(c{_MANY}{_CONTEXT}|mixed-c{_MANY})"
METRIC: Final = re.compile(
    rf"({_ONE_STREAM}|mixed-c[1-9][0-9]*-prefill)\.({'|'.join((*ONE_STREAM, *GAPS))})"
    rf"|{_STREAMS}\.({'|'.join((*STREAMS, *GAPS))})"
)
"""What decides or must not suffer: the figures of a cell's requests, as trispark_bench.cells names the cells."""
MEASURED: Final = re.compile(rf"{METRIC.pattern}|({_ONE_STREAM}|{_STREAMS})\.({'|'.join((ENGRAM_WAIT, *WINDOW))})")
"""... and what its windows and the engine's counters say besides."""
SETTING: Final = re.compile(r"<(?P<name>[A-Z][A-Z0-9_]+)(?:\+(?P<add>[0-9]+))?>")
Id = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Raw = int | float | str | bool
Letter = Literal["a", "b", "c", "d", "e", "f", "g"]
Ranks = Literal["all", "head", "workers"] | tuple[Annotated[int, Field(ge=0)], ...]


class EvidenceRef(Strict):
    """An evidence id, the ranks on which it counts, and the engines (none named: all of which the evidence is)."""

    id: str
    ranks: Ranks = "all"
    engines: tuple[Id, ...] = ()

    def named_ranks(self, world_size: int) -> tuple[int, ...]:
        """The ranks as numbers."""
        match self.ranks:
            case "all":
                return tuple(range(world_size))
            case "head":
                return (0,)
            case "workers":
                return tuple(range(1, world_size))
            case _:
                return self.ranks


class FeatureEvidence(Strict):
    """What must and must not be seen while the feature is set, and what must not be seen while it is not."""

    must: tuple[EvidenceRef, ...] = ()
    must_not: tuple[EvidenceRef, ...] = ()
    off_must_not: tuple[EvidenceRef, ...] = ()

    @property
    def references(self) -> tuple[EvidenceRef, ...]:
        """All of them."""
        return (*self.must, *self.must_not, *self.off_must_not)


class Sweep(Strict):
    """One key tried at several values, one trial a value. `also`: {value as text: what must be set with that value}."""

    name: str
    values: tuple[Raw, ...] = Field(min_length=2)
    also: dict[str, dict[str, Raw]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known_values(self) -> Sweep:
        texts = [format_value(value) for value in self.values]
        if len(set(texts)) != len(texts):
            raise ValueError("a value of the sweep is there twice")
        unknown = sorted(set(self.also) - set(texts))
        if unknown:
            raise ValueError(f"also names {unknown[0]}, which is no value of the sweep")
        if any(self.name in sets for sets in self.also.values()):
            raise ValueError(f"also sets {self.name}, which is what is swept")
        return self


class CheckBoot(Strict):
    """A boot of the candidate before the first that counts, which compares results; its times say nothing."""

    sets: dict[str, Raw] = Field(min_length=1)
    why: str
    must: tuple[EvidenceRef, ...] = Field(min_length=1)
    must_not: tuple[EvidenceRef, ...] = ()


class Acceptance(Strict):
    """Accept lengths (committed tokens a step) between which a boot of the feature is healthy, on the engines named
    (none named: all). Judged over the decode lines of the measurement."""

    low: float | int
    high: float | int
    engines: tuple[Id, ...] = ()
    source: str

    @model_validator(mode="after")
    def _ordered(self) -> Acceptance:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self


def _measurable(metric: str) -> str:
    if MEASURED.fullmatch(metric) is None:
        raise ValueError(f"{metric} is nothing that a boot measures")
    return metric


class NeededMeasurement(Strict):
    """What the newest valid boot of the baseline must have measured before the feature is worth a trial."""

    metric: str
    above: float | int
    reason: str

    @field_validator("metric")
    @classmethod
    def _measured(cls, value: str) -> str:
        return _measurable(value)


class MemoryCost(Strict):
    """Cost a rank; negative when the feature frees memory."""

    mib_per_rank: float | int
    note: str
    source: str


Direction = Literal["higher", "lower"]


class Movement(Strict):
    """A metric that moves in this direction when the feature works; a gain without it is not believed."""

    metric: str
    goes: Direction

    @field_validator("metric")
    @classmethod
    def _measured(cls, value: str) -> str:
        return _measurable(value)


class FieldObservation(Strict):
    """What others saw; never a result of this project."""

    claim: str
    source: str


class Kind(StrEnum):
    """What an entry of the catalog is."""

    CHANGE = "change"
    SWEEP = "sweep"
    BUNDLE = "bundle"
    BASELINE = "baseline"
    REFUSED = "refused"
    CONTROL = "control"


class Feature(Strict):
    """One entry of features.yml; the header of that file explains the fields."""

    kind: Kind
    title: str
    summary: str
    stages: tuple[Letter, ...] = Field(min_length=1)
    available: bool
    unavailable_reason: str | None = None
    unavailable_on: dict[Id, str] = Field(default_factory=dict)
    sets: dict[str, Raw] = Field(default_factory=dict)
    sets_on: dict[Id, dict[str, Raw]] = Field(default_factory=dict)
    sweep: Sweep | None = None
    check_boot: CheckBoot | None = None
    members: tuple[str, ...] = ()
    only_in: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    couples: tuple[str, ...] = ()
    needs: NeededMeasurement | None = None
    adapters: tuple[str, ...] = ()
    engine_adapters: tuple[str, ...] = ()
    builds: tuple[str, ...] = ()
    evidence: FeatureEvidence
    memory: MemoryCost | None = None
    primaries: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()
    margins: dict[str, Annotated[float, Field(gt=0, lt=0.5)]] = Field(default_factory=dict)
    acceptance: Acceptance | None = None
    mechanism: str
    moves: tuple[Movement, ...] = ()
    retunes: bool = False
    shifts_cost_balance: bool = False
    in_boot: bool = False
    rollback: str
    field_observations: tuple[FieldObservation, ...] = ()

    @property
    def tried(self) -> bool:
        """Whether it is something that a trial could change, at all."""
        return self.kind not in (Kind.BASELINE, Kind.REFUSED)

    @property
    def control(self) -> bool:
        """Whether it tries the measurement instead of the engine; never KEEP, and never asked of a stage."""
        return self.kind is Kind.CONTROL

    @property
    def same_arms(self) -> bool:
        """Whether both arms are declared to be one configuration (A/A)."""
        return self.control and not self.sets and self.sweep is None

    @model_validator(mode="after")
    def _complete(self) -> Feature:
        problems = [
            (
                self.available != (self.unavailable_reason is None),
                "unavailable_reason belongs to available: false, and only there",
            ),
            (bool(self.unavailable_on) and not self.available, "unavailable_on belongs to available: true"),
            (self.kind is Kind.REFUSED and self.available, "what is refused is available: false, with the reason"),
            (self.kind is Kind.REFUSED and bool(self.sets), "what is refused sets nothing"),
            (self.kind is Kind.SWEEP and self.sweep is None, "a sweep belongs to kind: sweep"),
            (self.sweep is not None and self.kind not in (Kind.SWEEP, Kind.CONTROL), "a sweep belongs to kind: sweep"),
            ((self.kind is Kind.BUNDLE) != bool(self.members), "members belong to kind: bundle, and only there"),
            (self.kind in (Kind.CHANGE, Kind.BUNDLE) and self.available and not self.sets, "the feature sets nothing"),
            (self.kind is Kind.BASELINE and bool(self.sets), "what is part of the baseline sets nothing"),
            (self.check_boot is not None and self.kind is not Kind.CHANGE, "a check boot belongs to kind: change"),
            (self.tried and not self.primaries, "a primary metric is needed"),
            (bool(self.builds) and not self.engine_adapters, "builds belong to engine_adapters"),
            (bool(self.sets_on) and self.kind is not Kind.CHANGE, "sets_on belongs to kind: change"),
        ]
        for wrong, text in problems:
            if wrong:
                raise ValueError(text)
        for engine, sets in self.sets_on.items():
            if twice := sorted(set(sets) & set(self.sets)):
                raise ValueError(f"sets_on {engine} names {twice[0]}, which sets does too")
        for metric in (*self.primaries, *self.guards):
            if METRIC.fullmatch(metric) is None:
                raise ValueError(f"{metric} is not a metric")
        if strange := sorted(set(self.margins) - {*self.primaries, *self.guards}):
            raise ValueError(f"margins names {strange[0]}, which is neither a primary nor a guard")
        if shared := sorted(set(self.primaries) & set(self.guards)):
            raise ValueError(f"{shared[0]} is a primary and a guard")
        for name in ("stages", "members", "only_in", "requires", "excludes", "couples", "primaries", "guards"):
            values = getattr(self, name)
            if len(set(values)) != len(values):
                raise ValueError(f"{name} has an entry twice")
        return self

    def on(self, engine: str) -> Feature:
        """Itself as that engine has it: with what it sets there alone."""
        if not self.sets_on:
            return self
        return self.model_copy(update={"sets": {**self.sets, **self.sets_on.get(engine, {})}, "sets_on": {}})

    def refusal_on(self, engine: str) -> str | None:
        """Why it cannot be run on an engine; None when it can."""
        return self.unavailable_reason if not self.available else self.unavailable_on.get(engine)


class Criterion(Strict):
    """Something that should be so before a stage begins, or when it has ended; judged by the site's records.

    baseline_measured: the newest measured boot of the site's baseline is valid, packed on every rank; verdicts: each of
    `features` (none named: each of the stage that can be tried) has a trial's record. `says` is for people.
    """

    id: Literal["baseline_measured", "verdicts"]
    says: str
    features: tuple[str, ...] = ()


class Stage(Strict):
    """One row of the review's experiment order."""

    title: str
    asks: str
    evidence: str
    trial: bool
    entry: tuple[Criterion, ...] = ()
    exit: tuple[Criterion, ...] = ()


class Evidence(Strict):
    """What a log line proves, on the engines that can print it (none named: all)."""

    pattern: str
    proves: str
    engines: tuple[Id, ...] = ()
    source: str

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        return require_expression(value)


def filled(pattern: str, settings: Mapping[str, object]) -> str:
    """An evidence pattern with `<NAME>` and `<NAME+1>` replaced by the (escaped) value that a configuration holds."""

    def value(match: re.Match[str]) -> str:
        raw = settings.get(match["name"])
        if isinstance(raw, int | float | str):
            return re.escape(format_value(raw if match["add"] is None else int(raw) + int(match["add"])))
        return match[0]

    return SETTING.sub(value, pattern)


def can_show(evidence: Evidence, reference: EvidenceRef, engine: str | None) -> bool:
    """Whether an engine can print it and it is asked of that engine."""
    return engine is None or all(not named or engine in named for named in (evidence.engines, reference.engines))


class ExclusionClass(StrEnum):
    """forbidden: never; deferred: as the one change of a trial of its own; no-claim: free, but never a decode gain."""

    FORBIDDEN = "forbidden"
    DEFERRED = "deferred"
    NO_CLAIM = "no-claim"


class Exclusion(Strict):
    """Values of one name that are forbidden, deferred or without claim; the header of exclusions.yml has the fields."""

    kind: ExclusionClass = Field(alias="class")
    name: str
    values: tuple[Raw, ...] | None = None
    any: bool = False
    below: float | int | None = None
    at_least: float | int | None = None
    matches: str | None = None
    unless: dict[str, Raw] = Field(default_factory=dict)
    belongs: tuple[str, ...] = ()
    off_in: tuple[Id, ...] = ()
    reason: str
    source: str

    @model_validator(mode="after")
    def _one_condition(self) -> Exclusion:
        given = [self.values is not None, self.any, *(v is not None for v in (self.below, self.at_least, self.matches))]
        deferred = self.kind is ExclusionClass.DEFERRED
        problems = [
            (sum(given) != 1, "exactly one of values, any, below, at_least, matches is needed"),
            (NAME.fullmatch(self.name) is None, f"{self.name} is not an environment name"),
            (bool(self.belongs or self.off_in) and not deferred, "belongs and off_in are of what is deferred"),
            (self.any and self.kind is not ExclusionClass.FORBIDDEN, "any is of what is forbidden"),
        ]
        for wrong, text in problems:
            if wrong:
                raise ValueError(text)
        if self.matches is not None:
            require_expression(self.matches)
        return self

    def holds(self, value: Value, settings: Mapping[str, object]) -> bool:
        """Whether this value of `name` is meant, beside the others of a configuration.

        With a name of `unless` missing there, nothing can be said, and so it is not meant.
        """
        others = [settings.get(name) for name in self.unless]
        if None in others or (self.unless and others == list(self.unless.values())):
            return False
        if self.any:
            return True
        if self.values is not None:
            return value in self.values
        if self.matches is not None:
            return re.fullmatch(self.matches, str(value)) is not None
        if isinstance(value, str):
            return False
        if self.below is not None:
            return value < self.below
        return self.at_least is not None and value >= self.at_least

    def condition(self) -> str:
        """What is allowed, for a message."""
        text = "not set at all"
        if self.values is not None:
            text = "not " + " or ".join(format_value(value) for value in self.values)
        elif self.matches is not None:
            text = f"nothing like {self.matches}"
        elif not self.any:
            text = f"at least {self.below}" if self.below is not None else f"below {self.at_least}"
        wanted = " and ".join(f"{name}={format_value(value)}" for name, value in self.unless.items())
        return f"{text}, or with {wanted}" if wanted else text


class BaselineFile(Strict):
    """experiments/baseline.yml."""

    schema_version: Literal[1]
    summary: str
    settings: dict[str, Raw]


class FeaturesFile(Strict):
    """experiments/features.yml."""

    schema_version: Literal[1]
    features: dict[Id, Feature]


class StagesFile(Strict):
    """experiments/stages.yml."""

    schema_version: Literal[1]
    stages: dict[Annotated[str, Field(pattern=r"^[a-g]$")], Stage]


class EvidenceFile(Strict):
    """experiments/evidence.yml."""

    schema_version: Literal[1]
    evidence: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*(\.[a-z0-9_]+)+$")], Evidence]


class ExclusionsFile(Strict):
    """experiments/exclusions.yml."""

    schema_version: Literal[1]
    exclusions: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")], Exclusion]
