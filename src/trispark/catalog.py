"""The catalog: features, stages, the shipped baseline, exclusions and evidence, checked together when loaded."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from trispark import catalog_check
from trispark.allowlist import FLAG, Allowlist, AllowlistFile, Value, format_value, is_plain_path
from trispark.catalog_model import (
    DIRECTORY,
    STAGES,
    BaselineFile,
    CheckBoot,
    Evidence,
    EvidenceFile,
    EvidenceRef,
    Exclusion,
    ExclusionClass,
    ExclusionsFile,
    Feature,
    FeaturesFile,
    Id,
    Kind,
    Raw,
    Stage,
    StagesFile,
    Sweep,
    can_show,
    filled,
)
from trispark.engine_api.model import BUILDS, BuildsFile
from trispark.errors import TrisparkError
from trispark.plainyaml import Model, Strict, check_model, read_yaml
from trispark.quality.model import EngineQuality, QualityFile

__all__ = [
    "DIRECTORY",
    "STAGES",
    "BaselineFile",
    "Catalog",
    "CheckBoot",
    "Choice",
    "Engine",
    "EnginesFile",
    "Evidence",
    "EvidenceFile",
    "EvidenceRule",
    "Exclusion",
    "ExclusionClass",
    "ExclusionsFile",
    "Feature",
    "FeaturesFile",
    "Judged",
    "Kind",
    "Raw",
    "Stage",
    "StagesFile",
    "Sweep",
    "assemble",
    "filled",
    "load_catalog",
]


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


class EngineIdentity(Strict):
    """What must be the same on every rank, by its place in the container."""

    sources: tuple[str, ...] = Field(min_length=1)
    same_set: tuple[str, ...]
    needed: tuple[str, ...]
    compiled: tuple[str, ...]
    autotune: str | None

    @model_validator(mode="after")
    def _places(self) -> EngineIdentity:
        for path in (*self.sources, *self.compiled, self.autotune):
            if path is not None and not is_plain_path(path):
                raise ValueError(f"an absolute path without . or .. is needed, not {path}")
        return self


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
    identity: EngineIdentity
    packages: tuple[str, ...]
    version_command: tuple[str, ...] = Field(min_length=1)
    ready_evidence: str
    switches: tuple[Id, ...] = ()
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


class EnginesFile(Strict):
    """experiments/engines.yml."""

    schema_version: Literal[1]
    engines: dict[Id, Engine]


@dataclass(frozen=True)
class Choice:
    """A feature that can be tried, with the value of its sweep (None for other kinds), and all that it sets.

    `companions` are names of `sets` that go with the value and may be so in the baseline already.
    """

    feature: str
    value: Value | None
    sets: Mapping[str, Value]
    companions: frozenset[str] = frozenset()

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
class Judged:
    """A value of a configuration that an exclusion means. `refused`: whether it stops the plan, else it is a note."""

    id: str
    kind: ExclusionClass
    name: str
    value: str
    refused: bool
    reason: str
    expected: str
    source: str

    def error(self, where: str) -> TrisparkError:
        """The refusal: TS-PLAN-EXCLUDED for what is forbidden, TS-PLAN-DEFERRED for what has to be tried alone."""
        if self.kind is ExclusionClass.FORBIDDEN:
            return TrisparkError(
                "TS-PLAN-EXCLUDED",
                f"{self.name} must not be set so (exclusion {self.id}): {self.reason}",
                where,
                self.expected,
                self.value,
                "leave it as the baseline has it",
            )
        return TrisparkError(
            "TS-PLAN-DEFERRED",
            f"{self.name} is tried alone, never beside another change (exclusion {self.id}): {self.reason}",
            where,
            self.expected,
            self.value,
            "try it alone, or leave it as the baseline has it",
        )

    def note(self) -> str:
        """One line for a plan that it does not stop."""
        what = (
            "is no decode gain" if self.kind is ExclusionClass.NO_CLAIM else "is deferred, here as a trial of its own"
        )
        return f"{self.name}={self.value} {what} (exclusion {self.id}): {self.reason}"


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
    quality: Mapping[str, EngineQuality] = field(default_factory=dict)
    builds: BuildsFile | None = None

    def on(self, engine: str) -> Catalog:
        """Itself as that engine has it: each feature with what it sets there alone. Of such a one it is itself."""
        if not any(entry.sets_on for entry in self.features.values()):
            return self
        return replace(self, features={name: entry.on(engine) for name, entry in self.features.items()})

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
                remedy="name one of them",
            )
        return letter

    def select(self, stage: str, feature: str | None, engine: str | None = None) -> str | None:
        """The feature to try in a stage; None for a stage without trials. `engine`: what it cannot run is not offered.

        Refused with the list of what this stage has: TS-FEATURE-MISSING (none given), TS-FEATURE-UNKNOWN,
        TS-FEATURE-STAGE (of another stage), TS-FEATURE-UNAVAILABLE.
        """
        letter = self.stage_letter(stage)
        names = self.features_of(letter)
        can = [name for name in names if self.features[name].available and self.features[name].tried]
        can = [name for name in can if not self.features[name].only_in and not self.features[name].control]
        can = [name for name in can if engine is None or self.features[name].refusal_on(engine) is None]
        has = ", ".join(can) if can else "no feature in this version"
        near = difflib.get_close_matches(feature or "", can, n=1) or can if feature else can
        remedy = f"-e feature={near[0]}" if len(near) == 1 else "name one of them"
        if not can:
            remedy = f"stage {letter} cannot be run yet"
        where = f"stage {letter}"
        expected = f"one of: {has}" if can else has
        if feature is None or feature == "":
            if not self.stages[letter].trial:
                return None
            raise TrisparkError("TS-FEATURE-MISSING", "no feature given", where, expected, "nothing", remedy)
        if feature not in self.features:
            if not difflib.get_close_matches(feature, can, n=1):
                remedy = self._elsewhere(feature) or remedy
            raise TrisparkError("TS-FEATURE-UNKNOWN", "the feature is unknown", where, expected, feature, remedy)
        if feature not in names:
            belongs = ", ".join(f"stage {s}" for s in self.features[feature].stages)
            if self.features[feature].stages:
                remedy = _ways(self.features[feature].stages[0], feature)
            if not self.stages[letter].trial:
                remedy = f"leave -e feature out, stage {letter} has no trial; or {remedy}"
            raise TrisparkError("TS-FEATURE-STAGE", f"{feature} belongs to {belongs}", where, expected, feature, remedy)
        self.require_available(feature)
        return feature

    def _elsewhere(self, feature: str) -> str | None:
        """How the feature of another stage is tried whose name is the nearest to one that is unknown."""
        tried = {name: entry for name, entry in self.features.items() if entry.available and entry.tried}
        tried = {name: entry for name, entry in tried.items() if entry.stages and not entry.control}
        near = difflib.get_close_matches(feature, tried, n=1)
        return _ways(tried[near[0]].stages[0], near[0]) if near else None

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
                remedy=" or ".join(difflib.get_close_matches(feature, list(self.features), n=3)) or "name one of them",
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
                "TS-FEATURE-UNAVAILABLE",
                f"{feature} {what}{on}",
                where,
                expected="available: true",
                observed=reason,
                remedy="try another one; ./trispark features lists what can be tried",
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

    def judge_build(self, features: Iterable[str], engine: str, image: str) -> tuple[list[TrisparkError], list[str]]:
        """(a refusal of an image that is not available and of each adapter that does not bind to its build, a note for
        what else is to be known) of features that go together, on an engine."""
        file = self.builds
        names = list(dict.fromkeys(each for name in features for each in self.features[name].engine_adapters))
        if file is None or engine != file.engine:
            return [], []
        build = file.build_of(image)
        if build is None:
            if not names:
                return [], []
            known = ", ".join(file.binding(names)) or "no build"
            return [], [f"of which build the image is, is not known here; {', '.join(names)} bind to {known}"]
        refused, notes = [], []
        if (found := file.unavailable(build)) is not None:
            refused.append(
                TrisparkError(
                    "TS-PLAN-IMAGE",
                    f"the image {found[0]} is not available",
                    where=build,
                    expected="available: true",
                    observed="it lacks " + ", ".join(found[1].lacks),
                    remedy="docs/release-image.md says what each takes; use another image until then",
                )
            )
        for name in names:
            cell = file.adapters[name].builds[build]
            if cell.status in ("not-applicable", "native"):
                refused.append(
                    TrisparkError(
                        "TS-PLAN-BUILD",
                        f"the adapter {name} does not bind to the build of the site's image: {cell.reason}",
                        where=build,
                        expected="one of " + ", ".join(file.binding([name])),
                        observed="it lacks " + ", ".join(cell.lacks) if cell.lacks else "it has the mechanism itself",
                        remedy="./trispark adapters check shows every build",
                    )
                )
            elif cell.status == "undescribed":
                notes.append(
                    f"whether {name} binds to {build} is not known ({cell.reason}); the engine's start refuses by name "
                    "what does not"
                )
        return refused, notes

    def sweep_values(self, feature: str, held: Mapping[str, Value] | None = None) -> tuple[Value, ...]:
        """The typed values of a sweep without the one that `held` (the shipped baseline) has; empty for other kinds."""
        sweep = self.features[feature].sweep
        if sweep is None:
            return ()
        where = f"{DIRECTORY}/features.yml {feature}"
        variable = self.allowlist.require(sweep.name, where)
        values = tuple(variable.check(value, where) for value in sweep.values)
        own = (self.baseline if held is None else held).get(sweep.name)
        return tuple(value for value in values if value != own)

    def choose(self, feature: str, value: str | None = None, held: Mapping[str, Value] | None = None) -> Choice:
        """The feature with the value of its sweep, given as text; `held` are the baseline's settings, if not the
        shipped ones. Raises TS-FEATURE-UNKNOWN, TS-FEATURE-VALUE.
        """
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
        offered = {format_value(known): known for known in self.sweep_values(feature, held)}
        if value not in offered:
            ruled_out = self.features.get(f"{feature}_{value}")
            reason = ruled_out.unavailable_reason if ruled_out else None
            raise TrisparkError(
                "TS-FEATURE-VALUE",
                f"{feature} is a sweep over {entry.sweep.name}",
                where,
                expected="one of " + ", ".join(offered) + " (the baseline has another of its values)",
                observed=(value or "no value") + (f", which is ruled out: {reason}" if reason else ""),
                remedy=f"-e value={_nearest(value or '', list(offered))}",
            )
        also = self._typed(entry.sweep.also.get(value, {}), where)
        return Choice(
            feature, offered[value], {**sets, **also, entry.sweep.name: offered[value]}, frozenset({*sets, *also})
        )

    def choices(self, feature: str, held: Mapping[str, Value] | None = None) -> tuple[Choice, ...]:
        """One choice for each value of a sweep; one for every other kind."""
        if self.require_feature(feature).sweep is not None:
            values = self.sweep_values(feature, held)
            return tuple(self.choose(feature, format_value(value), held) for value in values)
        return (self.choose(feature),)

    def check_settings(self, feature: str) -> dict[str, Value]:
        """What its check boot sets besides; empty when it has none."""
        check = self.features[feature].check_boot
        return {} if check is None else self._typed(check.sets, f"{DIRECTORY}/features.yml {feature}")

    def _typed(self, sets: Mapping[str, Raw], where: str) -> dict[str, Value]:
        return {name: self.allowlist.require(name, where).check(value, where) for name, value in sets.items()}

    def sets_of(self, feature: str) -> dict[str, Value]:
        """Typed values which a feature sets, without those of a sweep."""
        return self._typed(self.features[feature].sets, f"{DIRECTORY}/features.yml {feature}")

    def required_by(self, feature: str) -> tuple[str, ...]:
        """All features that must be set with it, those that they require first."""
        found: dict[str, None] = {}

        def visit(name: str) -> None:
            for other in self.features[name].requires:
                if other not in found:
                    visit(other)
                    found[other] = None

        visit(feature)
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

    def is_off(self, feature: str, settings: Mapping[str, object]) -> bool:
        """Whether a configuration holds the shipped baseline's values of all that the feature sets.

        A third value, a cap by another rule or a cache of another size, makes it neither active nor off.
        """
        entry = self.features[feature]
        names = tuple(entry.sets) if entry.sweep is None else (entry.sweep.name,)
        return bool(names) and all(settings.get(name) == self.baseline.get(name) for name in names)

    def evidence_rules(
        self, settings: Mapping[str, object], world_size: int, engine: str | None = None
    ) -> tuple[EvidenceRule, ...]:
        """The evidence that a configuration must show on an engine (None: whatever any engine can show).

        It is made from the settings alone, so that it also holds after a rollback.
        """
        rules: set[EvidenceRule] = set()

        def add(references: tuple[EvidenceRef, ...], must_appear: bool) -> None:
            for reference in references:
                entry = self.evidence[reference.id]
                if can_show(entry, reference, engine):
                    ranks = reference.named_ranks(world_size)
                    pattern = filled(entry.pattern, settings)
                    rules.add(EvidenceRule(reference.id, must_appear, pattern, ranks, entry.proves))

        for name, feature in self.features.items():
            if self.is_active(name, settings):
                add(feature.evidence.must, True)
                add(feature.evidence.must_not, False)
                check, sets = feature.check_boot, self.check_settings(name)
                if check is not None and all(settings.get(key) == value for key, value in sets.items()):
                    add(check.must, True)
                    add(check.must_not, False)
            elif self.is_off(name, settings):
                add(feature.evidence.off_must_not, False)
        return tuple(sorted(rules, key=lambda rule: (rule.id, not rule.must_appear, rule.ranks)))

    def accept_bands(self, settings: Mapping[str, object], engine: str) -> tuple[tuple[float, float], ...]:
        """(low, high) between which the accept length of a configuration is healthy on an engine: of every feature that
        it holds and that says so there, each band once."""
        bands = {
            (float(band.low), float(band.high))
            for name, feature in self.features.items()
            if (band := feature.acceptance) is not None
            and (not band.engines or engine in band.engines)
            and self.is_active(name, settings)
        }
        return tuple(sorted(bands))

    def judge_exclusions(
        self,
        settings: Mapping[str, Value],
        sets: Mapping[str, Value],
        *,
        feature: str | None = None,
        promoted: Collection[str] = (),
    ) -> tuple[Judged, ...]:
        """Every value of a configuration that an exclusion means.

        `sets` is what the tried feature sets, nothing for a baseline; `promoted` are names that the site's own baseline
        holds because a trial of their own kept them. Forbidden values are refused. A deferred one is refused unless it
        is the one change, or was promoted and the feature does not want it off. Without claim is what `sets` names or
        what the shipped baseline has otherwise; it is a note.
        """
        found = []
        for identity, exclusion in sorted(self.exclusions.items()):
            value = settings.get(exclusion.name)
            if value is None or not exclusion.holds(value, settings):
                continue
            own = exclusion.name in sets
            refused = exclusion.kind is ExclusionClass.FORBIDDEN
            if exclusion.kind is ExclusionClass.DEFERRED:
                alone = own and set(sets) <= {exclusion.name, *exclusion.belongs}
                kept = exclusion.name in promoted and not own and feature not in exclusion.off_in
                refused = not alone and not kept
            if exclusion.kind is ExclusionClass.NO_CLAIM and not own and value == self.baseline.get(exclusion.name):
                continue
            variable = self.allowlist.get(exclusion.name)
            found.append(
                Judged(
                    identity,
                    exclusion.kind,
                    exclusion.name,
                    format_value(value) if variable is None else variable.shown(value),
                    refused,
                    exclusion.reason,
                    exclusion.condition(),
                    exclusion.source,
                )
            )
        return tuple(found)

    def refuse_excluded(self, settings: Mapping[str, Value], where: str) -> None:
        """Raises TS-PLAN-EXCLUDED for the first value that must not be set."""
        for judged in self.judge_exclusions(settings, {}):
            if judged.kind is ExclusionClass.FORBIDDEN:
                raise judged.error(where)

    def refuse_deferred(
        self,
        settings: Mapping[str, Value],
        sets: Mapping[str, Value],
        where: str,
        *,
        feature: str | None = None,
        promoted: Collection[str] = (),
    ) -> None:
        """Raises TS-PLAN-DEFERRED for the first value that has to be tried alone and is not (see judge_exclusions)."""
        for judged in self.judge_exclusions(settings, sets, feature=feature, promoted=promoted):
            if judged.kind is ExclusionClass.DEFERRED and judged.refused:
                raise judged.error(where)

    def refuse_misplaced(self, keys: Mapping[str, str]) -> None:
        """Raises TS-PLAN-PLACE when a catalog key is among `keys`, {name: where it is set} (group_vars, `-e`)."""
        for name in sorted(keys):
            if name in self.allowlist or any(exclusion.name == name for exclusion in self.exclusions.values()):
                raise TrisparkError(
                    "TS-PLAN-PLACE",
                    f"{name} is a key of the catalog and has no effect here",
                    where=keys[name],
                    expected=f"{DIRECTORY}/baseline.yml, or a feature that sets it",
                    observed=f"{name} is set there",
                    remedy=self._way_to_set(name),
                )

    def _way_to_set(self, name: str) -> str:
        """What to do in place of setting a key by hand."""
        for feature in self.features:
            entry = self.features[feature]
            swept = entry.sweep is not None and entry.sweep.name == name
            if entry.available and entry.tried and entry.stages and (swept or name in entry.sets):
                tried = f"./trispark play stage_{entry.stages[0]} -e feature={feature}"
                return f"remove it there; {tried} tries another value"
        return "remove it there"


def _ways(stage: str, feature: str) -> str:
    """To look at what a feature would change, and to try it: whoever asks offline must not be told to boot."""
    given = f"-e feature={feature}"
    return f"./trispark plan {stage} {given} shows it, ./trispark play stage_{stage} {given} tries it"


def _nearest(value: str, offered: Sequence[str]) -> str:
    """Of some values as text the one that is meant, by its number where all are numbers."""
    try:
        wanted = float(value)
        return min(offered, key=lambda each: abs(float(each) - wanted))
    except ValueError:
        return next(iter(difflib.get_close_matches(value, offered, n=1)), offered[0])


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
        read(QualityFile, "quality.yml"),
        read(BuildsFile, Path(BUILDS).name),
    )


def assemble(
    allowlist_file: AllowlistFile,
    baseline_file: BaselineFile,
    features_file: FeaturesFile,
    stages_file: StagesFile,
    evidence_file: EvidenceFile,
    exclusions_file: ExclusionsFile,
    engines_file: EnginesFile,
    quality_file: QualityFile,
    builds_file: BuildsFile | None = None,
) -> Catalog:
    """The files as one catalog, with every reference between them checked."""
    fixed_flags = {flag for engine in engines_file.engines.values() for flag in engine.fixed_flags}
    allowlist = Allowlist(allowlist_file, fixed_flags)
    baseline = catalog_check.check_baseline(allowlist, baseline_file.settings)
    catalog = Catalog(
        allowlist,
        baseline,
        features_file.features,
        stages_file.stages,
        evidence_file.evidence,
        exclusions_file.exclusions,
        engines_file.engines,
        quality_file.engines,
        builds_file,
    )
    catalog_check.check_references(catalog)
    catalog.refuse_excluded(baseline, f"{DIRECTORY}/baseline.yml")
    return catalog
