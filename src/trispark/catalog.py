"""The catalog: features, stages, the shipped baseline, exclusions and evidence, checked together when loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator, model_validator

from trispark.allowlist import NAME, Allowlist, AllowlistFile, Value
from trispark.errors import TrisparkError
from trispark.plainyaml import Model, Strict, check_model, read_yaml

DIRECTORY: Final = "experiments"
STAGES: Final = ("a", "b", "c", "d", "e", "f", "g")
METRIC: Final = re.compile(r"c[0-9]+(-[a-z0-9_]+)?\.(decode_tps|agg_tps|ttft_s|itl_p95_s|per_stream_decode_tps)")
Id = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Raw = int | float | str | bool


class EvidenceRef(Strict):
    """An evidence id and the ranks on which it counts."""

    id: str
    ranks: Literal["all", "head", "workers"] | tuple[int, ...] = "all"

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

    must: tuple[EvidenceRef, ...]
    must_not: tuple[EvidenceRef, ...]
    off_must_not: tuple[EvidenceRef, ...]


class Sweep(Strict):
    """One key tried at several values, one trial a value."""

    name: str
    values: tuple[Raw, ...] = Field(min_length=2)


class MemoryCost(Strict):
    """Cost a rank; negative when the feature frees memory."""

    mib_per_rank: float | int
    note: str
    source: str


class FieldObservation(Strict):
    """What others saw; never a result of this project."""

    claim: str
    source: str


class Feature(Strict):
    """One entry of features.yml; the header of that file explains the fields."""

    title: str
    summary: str
    stages: tuple[Literal["a", "b", "c", "d", "e", "f", "g"], ...] = Field(min_length=1)
    available: bool
    unavailable_reason: str | None = None
    sets: dict[str, Raw]
    sweep: Sweep | None
    requires: tuple[str, ...]
    excludes: tuple[str, ...]
    couples: tuple[str, ...]
    adapters: tuple[str, ...]
    evidence: FeatureEvidence
    memory: MemoryCost | None
    primaries: tuple[str, ...] = Field(min_length=1)
    guards: tuple[str, ...]
    mechanism: str
    rollback: str
    field_observations: tuple[FieldObservation, ...]

    @model_validator(mode="after")
    def _complete(self) -> Feature:
        if self.available != (self.unavailable_reason is None):
            raise ValueError("unavailable_reason belongs to available: false, and only there")
        if not self.sets and self.sweep is None:
            raise ValueError("the feature sets nothing")
        for metric in (*self.primaries, *self.guards):
            if METRIC.fullmatch(metric) is None:
                raise ValueError(f"{metric} is not a metric")
        return self


class Stage(Strict):
    """One row of the review's experiment order."""

    title: str
    asks: str
    evidence: str
    trial: bool


class Evidence(Strict):
    """What a log line proves."""

    pattern: str
    proves: str
    source: str

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return value


class Exclusion(Strict):
    """Values of one name that must not be set; exactly one condition."""

    name: str
    values: tuple[Raw, ...] | None = None
    any: bool = False
    below: float | int | None = None
    at_least: float | int | None = None
    reason: str
    source: str

    @model_validator(mode="after")
    def _one_condition(self) -> Exclusion:
        given = [self.values is not None, self.any, self.below is not None, self.at_least is not None]
        if sum(given) != 1:
            raise ValueError("exactly one of values, any, below, at_least is needed")
        if NAME.fullmatch(self.name) is None:
            raise ValueError(f"{self.name} is not an environment name")
        return self

    def forbids(self, value: Value) -> bool:
        """Whether this value of `name` must not be set."""
        if self.any:
            return True
        if self.values is not None:
            return value in self.values
        if isinstance(value, str):
            return False
        if self.below is not None:
            return value < self.below
        return self.at_least is not None and value >= self.at_least

    def condition(self) -> str:
        """What is forbidden, for a message."""
        if self.any:
            return "not set at all"
        if self.values is not None:
            return "not " + " or ".join(str(value) for value in self.values)
        return f"at least {self.below}" if self.below is not None else f"below {self.at_least}"


class Ulimit(Strict):
    """A limit of the container; -1 means unlimited."""

    name: str
    soft: int
    hard: int


class Engine(Strict):
    """How an engine is run in its container."""

    title: str
    command: tuple[str, ...] = Field(min_length=1)
    adapters_mount: str
    health_path: str
    ipc_mode: str | None
    shm_size: str | None
    ulimits: tuple[Ulimit, ...]
    devices: tuple[str, ...]
    gpus: bool
    privileged: bool
    packages: tuple[str, ...]
    version_command: tuple[str, ...] = Field(min_length=1)


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


class EnginesFile(Strict):
    """experiments/engines.yml."""

    schema_version: Literal[1]
    engines: dict[Id, Engine]


@dataclass(frozen=True)
class EvidenceRule:
    """An observation that the logs of the named ranks must (or must not) hold for a configuration."""

    id: str
    must_appear: bool
    pattern: str
    ranks: tuple[int, ...]
    proves: str


@dataclass(frozen=True)
class Catalog:
    """All data of experiments/; `baseline` holds the typed values of every baseline key."""

    allowlist: Allowlist
    baseline: Mapping[str, Value]
    features: Mapping[str, Feature]
    stages: Mapping[str, Stage]
    evidence: Mapping[str, Evidence]
    exclusions: Mapping[str, Exclusion]
    engines: Mapping[str, Engine]

    def features_of(self, stage: str) -> tuple[str, ...]:
        """Ids of the features of a stage (`c` or `stage_c`), in the order of features.yml."""
        letter = self.stage_letter(stage)
        return tuple(name for name, feature in self.features.items() if letter in feature.stages)

    def stage_letter(self, stage: str) -> str:
        """`c` of `c` or `stage_c`. Raises TS-STAGE-UNKNOWN."""
        letter = stage.removeprefix("stage_")
        if letter not in self.stages:
            raise TrisparkError(
                "TS-STAGE-UNKNOWN",
                f"there is no stage {stage!r}",
                where=f"{DIRECTORY}/stages.yml",
                expected="one of " + ", ".join(self.stages),
                observed=stage,
            )
        return letter

    def select(self, stage: str, feature: str | None) -> str | None:
        """The feature to try in a stage; None for a stage without trials.

        Refused with the list of what this stage has: TS-FEATURE-MISSING (none given), TS-FEATURE-UNKNOWN,
        TS-FEATURE-STAGE (of another stage), TS-FEATURE-UNAVAILABLE.
        """
        letter = self.stage_letter(stage)
        names = self.features_of(letter)
        has = ", ".join(names) if names else "no feature in this version"
        remedy = f"-e feature={names[0]}" if names else f"stage {letter} cannot be run yet"
        where = f"stage {letter}"
        expected = f"one of: {has}" if names else has
        if feature is None or feature == "":
            if not self.stages[letter].trial:
                return None
            raise TrisparkError("TS-FEATURE-MISSING", "no feature given", where, expected, "nothing", remedy)
        if feature not in self.features:
            raise TrisparkError("TS-FEATURE-UNKNOWN", "the feature is unknown", where, expected, feature, remedy)
        if feature not in names:
            belongs = ", ".join(f"stage {s}" for s in self.features[feature].stages)
            if not self.stages[letter].trial:
                remedy = f"leave -e feature out, stage {letter} has no trial"
            raise TrisparkError("TS-FEATURE-STAGE", f"{feature} belongs to {belongs}", where, expected, feature, remedy)
        self.require_available(feature)
        return feature

    def require_available(self, feature: str) -> Feature:
        """The feature. Raises TS-FEATURE-UNKNOWN or TS-FEATURE-UNAVAILABLE with the reason."""
        entry = self.features.get(feature)
        if entry is None:
            raise TrisparkError(
                "TS-FEATURE-UNKNOWN",
                "the feature is unknown",
                where=f"{DIRECTORY}/features.yml",
                expected="one of: " + ", ".join(self.features),
                observed=feature,
            )
        if not entry.available:
            raise TrisparkError(
                "TS-FEATURE-UNAVAILABLE",
                f"{feature} cannot be run yet",
                where=f"{DIRECTORY}/features.yml",
                expected="available: true",
                observed=entry.unavailable_reason or "",
            )
        return entry

    def sets_of(self, feature: str) -> dict[str, Value]:
        """Typed values which a feature sets."""
        where = f"{DIRECTORY}/features.yml {feature}"
        return {
            name: self.allowlist.require(name, where).check(value, where)
            for name, value in self.features[feature].sets.items()
        }

    def is_active(self, feature: str, settings: Mapping[str, object]) -> bool:
        """Whether a configuration holds all that the feature sets, under whatever name it came there."""
        sets = self.sets_of(feature)
        return bool(sets) and all(settings.get(name) == value for name, value in sets.items())

    def evidence_rules(self, settings: Mapping[str, object], world_size: int) -> tuple[EvidenceRule, ...]:
        """The evidence that a configuration must show; made from its settings, so it also holds after a rollback."""
        rules = []
        for name, feature in self.features.items():
            groups: list[tuple[tuple[EvidenceRef, ...], bool]] = [(feature.evidence.off_must_not, False)]
            if self.is_active(name, settings):
                groups = [(feature.evidence.must, True), (feature.evidence.must_not, False)]
            for references, must in groups:
                for reference in references:
                    entry = self.evidence[reference.id]
                    ranks = reference.named_ranks(world_size)
                    rules.append(EvidenceRule(reference.id, must, entry.pattern, ranks, entry.proves))
        return tuple(sorted(set(rules), key=lambda rule: (rule.id, not rule.must_appear, rule.ranks)))

    def refuse_excluded(self, settings: Mapping[str, Value], where: str) -> None:
        """Raises TS-PLAN-EXCLUDED for the first value that must not be set."""
        for identity, exclusion in sorted(self.exclusions.items()):
            value = settings.get(exclusion.name)
            if value is not None and exclusion.forbids(value):
                variable = self.allowlist.get(exclusion.name)
                raise TrisparkError(
                    "TS-PLAN-EXCLUDED",
                    f"{exclusion.name} must not be set so (exclusion {identity}): {exclusion.reason}",
                    where=where,
                    expected=exclusion.condition(),
                    observed=str(value) if variable is None else variable.shown(value),
                    remedy="leave it as the baseline has it",
                )

    def refuse_misplaced(self, keys: Mapping[str, str]) -> None:
        """Raises TS-PLAN-PLACE when a catalog key is among `keys`, {name: where it is set} (group_vars, `-e`)."""
        for name in sorted(keys):
            if name in self.allowlist or any(exclusion.name == name for exclusion in self.exclusions.values()):
                raise TrisparkError(
                    "TS-PLAN-PLACE",
                    f"{name} is a key of the catalog and has no effect here",
                    where=keys[name],
                    expected=f"{DIRECTORY}/baseline.yml, or a feature that sets it",
                    observed=keys[name],
                    remedy="remove it there",
                )


def load_catalog(root: Path) -> Catalog:
    """The catalog below `root`/experiments. Errors: TS-CATALOG-SCHEMA, TS-CATALOG-REFERENCE, TS-ENV-*, TS-YAML-*."""
    directory = root / DIRECTORY

    def read(model: type[Model], name: str) -> Model:
        return check_model(model, read_yaml(directory / name), f"{DIRECTORY}/{name}", "TS-CATALOG-SCHEMA")

    return assemble(
        read(AllowlistFile, "env_allowlist.yml"),
        read(BaselineFile, "baseline.yml"),
        read(FeaturesFile, "features.yml"),
        read(StagesFile, "stages.yml"),
        read(EvidenceFile, "evidence.yml"),
        read(ExclusionsFile, "exclusions.yml"),
        read(EnginesFile, "engines.yml"),
    )


def assemble(
    allowlist_file: AllowlistFile,
    baseline_file: BaselineFile,
    features_file: FeaturesFile,
    stages_file: StagesFile,
    evidence_file: EvidenceFile,
    exclusions_file: ExclusionsFile,
    engines_file: EnginesFile,
) -> Catalog:
    """The files as one catalog, with every reference between them checked."""
    allowlist = Allowlist(allowlist_file)
    baseline = check_baseline(allowlist, baseline_file.settings)
    catalog = Catalog(
        allowlist,
        baseline,
        features_file.features,
        stages_file.stages,
        evidence_file.evidence,
        exclusions_file.exclusions,
        engines_file.engines,
    )
    _check_references(catalog)
    catalog.refuse_excluded(baseline, f"{DIRECTORY}/baseline.yml")
    return catalog


def check_baseline(allowlist: Allowlist, settings: Mapping[str, Raw]) -> dict[str, Value]:
    """Typed baseline settings, every key explicit. Raises TS-ENV-* or TS-CATALOG-REFERENCE."""
    where = f"{DIRECTORY}/baseline.yml"
    typed: dict[str, Value] = {}
    for name in sorted(settings):
        variable = allowlist.require(name, where)
        if variable.source != "baseline":
            raise _reference(where, f"{name} is not a baseline key, its source is {variable.source}", name)
        typed[name] = variable.check(settings[name], where)
    for variable in allowlist.variables():
        if variable.source == "baseline" and variable.name not in typed:
            raise _reference(where, f"the key {variable.name} is missing", "every key explicit")
        if variable.inert_value is not None:
            variable.check(variable.inert_value, f"{DIRECTORY}/env_allowlist.yml")
    return typed


def _check_references(catalog: Catalog) -> None:
    engines = set(catalog.engines)
    for variable in catalog.allowlist.variables():
        where = f"{DIRECTORY}/env_allowlist.yml {variable.name}"
        unnamed = sorted(engines - set(variable.engines))
        if unnamed:
            raise _reference(where, f"the engine {unnamed[0]} is not named", unnamed[0])
    missing = [stage for stage in STAGES if stage not in catalog.stages]
    if missing:
        raise _reference(f"{DIRECTORY}/stages.yml", f"the stage {missing[0]} is missing", missing[0])
    for name, feature in catalog.features.items():
        where = f"{DIRECTORY}/features.yml {name}"
        for other in (*feature.requires, *feature.excludes, *feature.couples):
            if other not in catalog.features or other == name:
                raise _reference(where, f"it names the feature {other}, which is not another entry", other)
        for reference in (*feature.evidence.must, *feature.evidence.must_not, *feature.evidence.off_must_not):
            if reference.id not in catalog.evidence:
                raise _reference(where, f"it names the evidence {reference.id}, which does not exist", reference.id)
        for key, value in feature.sets.items():
            variable = catalog.allowlist.require(key, where)
            variable.check(value, where)
            if variable.source != "baseline":
                raise _reference(where, f"it sets {key}, whose source is {variable.source}", key)
        for stage in feature.stages:
            if not catalog.stages[stage].trial:
                raise _reference(where, f"stage {stage} has no trials", stage)
        if feature.sweep is not None:
            variable = catalog.allowlist.require(feature.sweep.name, where)
            for value in feature.sweep.values:
                variable.check(value, where)
    for identity, exclusion in catalog.exclusions.items():
        where = f"{DIRECTORY}/exclusions.yml {identity}"
        known = catalog.allowlist.get(exclusion.name)
        if known is None and not exclusion.any:
            raise _reference(where, f"{exclusion.name} is not in the allowlist, its values cannot be judged", identity)
        for value in exclusion.values or ():
            if known is not None:
                known.check(value, where)


def _reference(where: str, what: str, observed: str) -> TrisparkError:
    return TrisparkError("TS-CATALOG-REFERENCE", what, where=where, observed=observed, remedy=f"correct {where}")
