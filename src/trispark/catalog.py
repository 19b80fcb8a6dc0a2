"""The catalog: features, stages, the shipped baseline, exclusions and evidence, checked together when loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from trispark.allowlist import FLAG, NAME, Allowlist, AllowlistFile, Scope, Support, Value, format_value, is_plain_path
from trispark.errors import TrisparkError
from trispark.plainyaml import Model, Strict, check_model, read_yaml

DIRECTORY: Final = "experiments"
STAGES: Final = ("a", "b", "c", "d", "e", "f", "g")
METRIC: Final = re.compile(r"c[0-9]+(-[a-z0-9_]+)?\.(decode_tps|agg_tps|ttft_s|itl_p95_s|per_stream_decode_tps)")
_SETTING: Final = re.compile(r"<(?P<name>[A-Z][A-Z0-9_]+)(?:\+(?P<add>[0-9]+))?>")
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
        return self


class Acceptance(Strict):
    """Accept lengths (committed tokens a step) between which a boot of the feature is healthy."""

    low: float | int
    high: float | int
    source: str


class NeededMeasurement(Strict):
    """What the newest valid boot of the baseline must have measured before the feature is worth a trial."""

    metric: str
    above: float | int
    reason: str


class MemoryCost(Strict):
    """Cost a rank; negative when the feature frees memory."""

    mib_per_rank: float | int
    note: str
    source: str


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


class Feature(Strict):
    """One entry of features.yml; the header of that file explains the fields."""

    kind: Kind
    title: str
    summary: str
    stages: tuple[Literal["a", "b", "c", "d", "e", "f", "g"], ...] = Field(min_length=1)
    available: bool
    unavailable_reason: str | None = None
    unavailable_on: dict[Id, str] = Field(default_factory=dict)
    sets: dict[str, Raw] = Field(default_factory=dict)
    sweep: Sweep | None = None
    members: tuple[str, ...] = ()
    only_in: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    couples: tuple[str, ...] = ()
    needs: NeededMeasurement | None = None
    adapters: tuple[str, ...] = ()
    evidence: FeatureEvidence
    memory: MemoryCost | None = None
    primaries: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()
    acceptance: Acceptance | None = None
    mechanism: str
    retunes: bool = False
    shifts_cost_balance: bool = False
    rollback: str
    field_observations: tuple[FieldObservation, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Feature:
        tried = self.kind not in (Kind.BASELINE, Kind.REFUSED)
        problems = [
            (
                self.available != (self.unavailable_reason is None),
                "unavailable_reason belongs to available: false, and only there",
            ),
            (self.kind is Kind.REFUSED and self.available, "what is refused is available: false, with the reason"),
            ((self.kind is Kind.SWEEP) != (self.sweep is not None), "a sweep belongs to kind: sweep, and only there"),
            ((self.kind is Kind.BUNDLE) != bool(self.members), "members belong to kind: bundle, and only there"),
            (self.kind in (Kind.CHANGE, Kind.BUNDLE) and self.available and not self.sets, "the feature sets nothing"),
            (self.kind is Kind.BASELINE and bool(self.sets), "what is part of the baseline sets nothing"),
            (tried and not self.primaries, "a primary metric is needed"),
        ]
        for wrong, text in problems:
            if wrong:
                raise ValueError(text)
        for metric in (*self.primaries, *self.guards):
            if METRIC.fullmatch(metric) is None:
                raise ValueError(f"{metric} is not a metric")
        return self

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


class Healthcheck(Strict):
    """The container's own health check, as the Engine runs it; nothing here judges a boot by it."""

    test: tuple[str, ...] = Field(min_length=1)
    interval_s: Annotated[int, Field(ge=1, le=3600)]
    timeout_s: Annotated[int, Field(ge=1, le=3600)]
    start_period_s: Annotated[int, Field(ge=0, le=86400)]
    retries: Annotated[int, Field(ge=1, le=100)]


class Smoke(Strict):
    """One greedy question with one right answer, through all ranks. `body`: what the request has besides."""

    prompt: str
    text: str
    max_tokens: Annotated[int, Field(ge=1, le=4096)]
    timeout_s: Annotated[int, Field(ge=1, le=3600)]
    body: dict[str, Any] = Field(default_factory=dict)


class BatchCheck(Strict):
    """Requests sent at once, as many as there are slots; each answer must be Latin prose (see trispark.warmup)."""

    prompts: tuple[str, ...] = Field(min_length=1)
    max_tokens: Annotated[int, Field(ge=1, le=4096)]
    timeout_s: Annotated[int, Field(ge=1, le=3600)]
    minimum_ascii_share: Annotated[float, Field(gt=0, le=1)]
    body: dict[str, Any] = Field(default_factory=dict)


class Engine(Strict):
    """How an engine is run in its container; the header of engines.yml explains the fields."""

    title: str
    command: tuple[str, ...] = Field(min_length=1)
    keep_entrypoint: bool
    fixed_args: tuple[str, ...] = ()
    same_as: dict[Annotated[str, Field(pattern=FLAG.pattern)], str] = Field(default_factory=dict)
    adapters_mount: str
    state_mount: str
    autotune_mount: str | None
    cache_mount: str | None
    health_path: str
    healthcheck: Healthcheck | None
    ipc_mode: str | None
    shm_size: str | None
    ulimits: tuple[Ulimit, ...]
    devices: tuple[str, ...]
    cap_add: tuple[str, ...]
    image_env: tuple[str, ...]
    gpus: bool
    privileged: Literal["never", "site"]
    packages: tuple[str, ...]
    version_command: tuple[str, ...] = Field(min_length=1)
    ready_evidence: str
    smoke: Smoke
    batch_check: BatchCheck

    @model_validator(mode="after")
    def _places(self) -> Engine:
        for path in (self.adapters_mount, self.state_mount, self.autotune_mount, self.cache_mount):
            if path is not None and not is_plain_path(path):
                raise ValueError(f"an absolute path without . or .. is needed, not {path}")
        repeated = [flag for flag in self.fixed_flags if self.fixed_flags.count(flag) > 1]
        if repeated:
            raise ValueError(f"the flag {repeated[0]} is given twice")
        return self

    @property
    def fixed_flags(self) -> tuple[str, ...]:
        """Flags that no variable of the allowlist delivers."""
        return (*(argument for argument in self.fixed_args if argument.startswith("--")), *self.same_as)


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


def filled(pattern: str, settings: Mapping[str, object]) -> str:
    """An evidence pattern with `<NAME>` and `<NAME+1>` replaced by the (escaped) value that a configuration holds."""

    def value(match: re.Match[str]) -> str:
        raw = settings.get(match["name"])
        if isinstance(raw, int | float | str):
            return re.escape(format_value(raw if match["add"] is None else int(raw) + int(match["add"])))
        return match[0]

    return _SETTING.sub(value, pattern)


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
class Choice:
    """A feature that can be tried, with the value of its sweep (None for other kinds), and all that it sets."""

    feature: str
    value: Value | None
    sets: Mapping[str, Value]

    @property
    def label(self) -> str:
        """`wo_a`, or `block_size=5`."""
        return self.feature if self.value is None else f"{self.feature}={format_value(self.value)}"


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

    def require_feature(self, feature: str) -> Feature:
        """The entry. Raises TS-FEATURE-UNKNOWN."""
        entry = self.features.get(feature)
        if entry is None:
            raise TrisparkError(
                "TS-FEATURE-UNKNOWN",
                "the feature is unknown",
                where=f"{DIRECTORY}/features.yml",
                expected="one of: " + ", ".join(self.features),
                observed=feature,
            )
        return entry

    def require_available(self, feature: str, engine: str | None = None) -> Feature:
        """The entry, one that can be tried (on `engine`, when given).

        Raises TS-FEATURE-UNKNOWN; TS-FEATURE-UNAVAILABLE with the reason; TS-FEATURE-BASELINE for what every boot
        shows anyway; TS-FEATURE-BUNDLE for what is tried inside a bundle alone.
        """
        entry = self.require_feature(feature)
        where = f"{DIRECTORY}/features.yml"
        reason = entry.unavailable_reason if engine is None else entry.refusal_on(engine)
        if reason is not None:
            what = "is ruled out" if entry.kind is Kind.REFUSED else "cannot be run yet"
            on = "" if engine is None or not entry.available else f" on the engine {engine}"
            raise TrisparkError(
                "TS-FEATURE-UNAVAILABLE", f"{feature} {what}{on}", where, expected="available: true", observed=reason
            )
        if entry.kind is Kind.BASELINE:
            raise TrisparkError(
                "TS-FEATURE-BASELINE",
                f"{feature} is part of the baseline and cannot be tried",
                where,
                expected="a feature that changes something",
                observed=feature,
                remedy="run stage_a.yml, which verifies it on every rank",
            )
        if entry.only_in:
            raise TrisparkError(
                "TS-FEATURE-BUNDLE",
                f"{feature} is tried inside a bundle alone",
                where,
                expected=" or ".join(entry.only_in),
                observed=feature,
                remedy=f"-e feature={entry.only_in[0]}",
            )
        return entry

    def sweep_values(self, feature: str) -> tuple[Value, ...]:
        """The typed values of a sweep that differ from the baseline; empty for every other kind."""
        sweep = self.features[feature].sweep
        if sweep is None:
            return ()
        where = f"{DIRECTORY}/features.yml {feature}"
        variable = self.allowlist.require(sweep.name, where)
        values = tuple(variable.check(value, where) for value in sweep.values)
        return tuple(value for value in values if value != self.baseline.get(sweep.name))

    def choose(self, feature: str, value: str | None = None) -> Choice:
        """The feature with the value of its sweep, given as text. Raises TS-FEATURE-UNKNOWN, TS-FEATURE-VALUE."""
        entry = self.require_feature(feature)
        where = f"{DIRECTORY}/features.yml {feature}"
        sets = self._typed(entry.sets, where)
        if entry.sweep is None:
            if value not in (None, ""):
                raise TrisparkError(
                    "TS-FEATURE-VALUE",
                    f"{feature} is no sweep and takes no value",
                    where,
                    expected="no value",
                    observed=str(value),
                    remedy="leave the value out",
                )
            return Choice(feature, None, sets)
        offered = {format_value(known): known for known in self.sweep_values(feature)}
        if value not in offered:
            raise TrisparkError(
                "TS-FEATURE-VALUE",
                f"{feature} is a sweep over {entry.sweep.name}",
                where,
                expected="one of " + ", ".join(offered) + " (the baseline has another of its values)",
                observed=value or "no value",
                remedy=f"-e value={next(iter(offered))}",
            )
        also = self._typed(entry.sweep.also.get(value, {}), where)
        return Choice(feature, offered[value], {**sets, **also, entry.sweep.name: offered[value]})

    def choices(self, feature: str) -> tuple[Choice, ...]:
        """One choice for each value of a sweep; one for every other kind that sets something."""
        if self.require_feature(feature).sweep is not None:
            return tuple(self.choose(feature, format_value(value)) for value in self.sweep_values(feature))
        return (self.choose(feature),)

    def _typed(self, sets: Mapping[str, Raw], where: str) -> dict[str, Value]:
        return {name: self.allowlist.require(name, where).check(value, where) for name, value in sets.items()}

    def sets_of(self, feature: str) -> dict[str, Value]:
        """Typed values which a feature sets, without those of a sweep."""
        return self._typed(self.features[feature].sets, f"{DIRECTORY}/features.yml {feature}")

    def required_by(self, feature: str) -> tuple[str, ...]:
        """All features that must be set with it, those that they require first."""
        found: list[str] = []
        for other in self.features[feature].requires:
            found += [name for name in (*self.required_by(other), other) if name not in found]
        return tuple(found)

    def is_active(self, feature: str, settings: Mapping[str, object]) -> bool:
        """Whether a configuration holds what the feature sets, under whatever name it came there."""
        entry = self.features[feature]
        if entry.kind is Kind.BASELINE:
            return True
        if entry.sweep is not None:
            return settings.get(entry.sweep.name) in self.sweep_values(feature)
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
                    pattern = filled(entry.pattern, settings)
                    rules.append(EvidenceRule(reference.id, must, pattern, ranks, entry.proves))
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
    fixed_flags = {flag for engine in engines_file.engines.values() for flag in engine.fixed_flags}
    allowlist = Allowlist(allowlist_file, fixed_flags)
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
    for name, described in catalog.engines.items():
        _check_engine(catalog, name, described)
    missing = [stage for stage in STAGES if stage not in catalog.stages]
    if missing:
        raise _reference(f"{DIRECTORY}/stages.yml", f"the stage {missing[0]} is missing", missing[0])
    for letter, row in catalog.stages.items():
        for name in (name for criterion in (*row.entry, *row.exit) for name in criterion.features):
            if name not in catalog.features:
                raise _reference(f"{DIRECTORY}/stages.yml {letter}", f"it names {name}, which is no feature", name)
    for name, feature in catalog.features.items():
        where = f"{DIRECTORY}/features.yml {name}"
        for other in (*feature.requires, *feature.excludes, *feature.couples, *feature.members, *feature.only_in):
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
            if not catalog.stages[stage].trial and feature.kind not in (Kind.BASELINE, Kind.REFUSED):
                raise _reference(where, f"stage {stage} has no trials", stage)
        for engine in feature.unavailable_on:
            if engine not in catalog.engines:
                raise _reference(where, f"it names the engine {engine}, which does not exist", engine)
        if feature.sweep is not None:
            _check_sweep(catalog, name, feature.sweep, where)
        _check_group(catalog, name, feature, where)
    _check_no_cycle(catalog)
    for identity, entry in catalog.evidence.items():
        for match in _SETTING.finditer(entry.pattern):
            catalog.allowlist.require(match["name"], f"{DIRECTORY}/evidence.yml {identity}")
    for identity, exclusion in catalog.exclusions.items():
        where = f"{DIRECTORY}/exclusions.yml {identity}"
        known = catalog.allowlist.get(exclusion.name)
        if known is None and not exclusion.any:
            raise _reference(where, f"{exclusion.name} is not in the allowlist, its values cannot be judged", identity)
        for value in exclusion.values or ():
            if known is not None:
                known.check(value, where)


def _check_engine(catalog: Catalog, name: str, engine: Engine) -> None:
    where = f"{DIRECTORY}/engines.yml {name}"
    if engine.ready_evidence not in catalog.evidence:
        raise _reference(where, f"it names the evidence {engine.ready_evidence}, which does not exist", name)
    for flag in engine.fixed_flags:
        variable = catalog.allowlist.by_flag(flag)
        if variable is not None and variable.support(name) is not Support.REFUSED:
            raise _reference(where, f"{flag} is fixed, but {variable.name} delivers it too", flag)
    for flag, source in engine.same_as.items():
        variable = catalog.allowlist.require(source, where)
        if variable.scope is not Scope.COMMON or variable.support(name) is Support.REFUSED:
            raise _reference(where, f"{flag} follows {source}, which this engine is not given on every rank", source)


def _check_sweep(catalog: Catalog, name: str, sweep: Sweep, where: str) -> None:
    variable = catalog.allowlist.require(sweep.name, where)
    if variable.source != "baseline":
        raise _reference(where, f"it sweeps {sweep.name}, whose source is {variable.source}", sweep.name)
    for value in sweep.values:
        variable.check(value, where)
    for sets in ({}, *sweep.also.values()):
        for key, value in sets.items():
            catalog.allowlist.require(key, where).check(value, where)
    if not catalog.sweep_values(name):
        raise _reference(where, f"every value of {sweep.name} is the baseline's", sweep.name)


def _check_group(catalog: Catalog, name: str, feature: Feature, where: str) -> None:
    """A bundle sets what its members set and nothing else; what is tried in bundles alone is a member of each."""
    for bundle in feature.only_in:
        if name not in catalog.features[bundle].members:
            raise _reference(where, f"only_in names {bundle}, of which it is no member", bundle)
    if not feature.members:
        return
    offered: dict[str, set[Value]] = {}
    for member in feature.members:
        entry = catalog.features[member]
        if entry.kind not in (Kind.CHANGE, Kind.SWEEP):
            raise _reference(where, f"the member {member} is a {entry.kind.value}", member)
        for choice in catalog.choices(member):
            for key, value in choice.sets.items():
                offered.setdefault(key, set()).add(value)
    for key, value in catalog.sets_of(name).items():
        if value not in offered.get(key, set()):
            raise _reference(where, f"{key}={value} is nothing that a member sets", key)
    missing = sorted(set(offered) - set(feature.sets))
    if missing and feature.sets:
        raise _reference(where, f"a member sets {missing[0]}, the bundle does not", missing[0])


def _check_no_cycle(catalog: Catalog) -> None:
    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise _reference(
                f"{DIRECTORY}/features.yml {name}", "it requires itself: " + " > ".join((*path, name)), name
            )
        for other in catalog.features[name].requires:
            visit(other, (*path, name))

    for name in catalog.features:
        visit(name, ())


def _reference(where: str, what: str, observed: str) -> TrisparkError:
    return TrisparkError("TS-CATALOG-REFERENCE", what, where=where, observed=observed, remedy=f"correct {where}")
