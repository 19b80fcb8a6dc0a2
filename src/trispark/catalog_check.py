"""Every reference between the files of the catalog, checked when it is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from trispark.allowlist import NEVER, Allowlist, Scope, Support, Value, Variable
from trispark.allowlist import Kind as Type
from trispark.catalog_model import (
    DIRECTORY,
    SETTING,
    STAGES,
    Evidence,
    EvidenceRef,
    Exclusion,
    Feature,
    Kind,
    Raw,
    Sweep,
    can_show,
)
from trispark.errors import TrisparkError
from trispark.stage_playbook import CONFIRM

if TYPE_CHECKING:
    from trispark.catalog import Catalog, Engine

ALLOWLIST = f"{DIRECTORY}/env_allowlist.yml"
UNPROVEN = "no evidence proves it on the engine"


BASELINE = f"{DIRECTORY}/baseline.yml"


def judge_baseline(allowlist: Allowlist, settings: Mapping[str, object]) -> Iterator[tuple[str, Value | TrisparkError]]:
    """Of every key that the baseline has or must have, its typed value or what is wrong with it."""
    for name in sorted(settings):
        try:
            variable = allowlist.require(name, BASELINE)
            if variable.source != "baseline":
                raise _reference(
                    BASELINE,
                    f"{name} is no key of the baseline",
                    f"its source is {variable.source}",
                    "a variable whose source is baseline",
                )
            yield name, variable.check(settings[name], BASELINE)
        except TrisparkError as error:
            yield name, error
    for variable in allowlist.variables():
        if variable.source == "baseline" and variable.name not in settings:
            missing = f"the key {variable.name} is missing"
            yield (
                variable.name,
                _reference(BASELINE, missing, "nothing", f"every key explicit, also {variable.name}"),
            )


def check_baseline(allowlist: Allowlist, settings: Mapping[str, Raw]) -> dict[str, Value]:
    """Typed baseline settings, every key explicit. Raises TS-ENV-* or TS-CATALOG-REFERENCE."""
    typed: dict[str, Value] = {}
    for name, found in judge_baseline(allowlist, settings):
        if isinstance(found, TrisparkError):
            raise found
        typed[name] = found
    for variable in allowlist.variables():
        for value in (variable.inert_value, variable.omit_value, variable.default):
            if value is not None:
                variable.check(value, f"{ALLOWLIST} {variable.name}")
    return typed


def engines_of(catalog: Catalog) -> frozenset[str]:
    """Engines that can be run, and those that the allowlist names already."""
    named = {engine for variable in catalog.allowlist.variables() for engine in variable.engines}
    return frozenset({*catalog.engines, *named})


def check_references(catalog: Catalog) -> None:
    """Raises TS-CATALOG-REFERENCE for the first reference that leads nowhere, TS-ENV-* for a wrong value."""
    engines = engines_of(catalog)
    for variable in catalog.allowlist.variables():
        unnamed = sorted(engines - set(variable.engines))
        if unnamed:
            raise _reference(f"{ALLOWLIST} {variable.name}", f"the engine {unnamed[0]} is not named", unnamed[0])
    for name, described in catalog.engines.items():
        _check_engine(catalog, name, described)
        if name not in catalog.quality:
            raise _reference(f"{DIRECTORY}/quality.yml", f"it has no questions for the engine {name}", name)
    for name in catalog.quality:
        if name not in catalog.engines:
            raise _reference(f"{DIRECTORY}/quality.yml", f"it names the engine {name}, which does not exist", name)
    missing = [stage for stage in STAGES if stage not in catalog.stages]
    if missing:
        raise _reference(f"{DIRECTORY}/stages.yml", f"the stage {missing[0]} is missing", missing[0])
    for letter, row in catalog.stages.items():
        for name in (name for criterion in (*row.entry, *row.exit) for name in criterion.features):
            if name not in catalog.features:
                raise _reference(f"{DIRECTORY}/stages.yml {letter}", f"it names {name}, which is no feature", name)
    for identity, evidence in catalog.evidence.items():
        _check_evidence(catalog, evidence, engines, f"{DIRECTORY}/evidence.yml {identity}")
    if CONFIRM in catalog.features:
        raise _reference(f"{DIRECTORY}/features.yml", f"{CONFIRM} is the name of the confirmation", CONFIRM)
    for name, feature in catalog.features.items():
        where = f"{DIRECTORY}/features.yml {name}"
        _check_names(catalog, name, feature, engines, where)
        _check_sets(catalog, feature.sets, where)
        for engine, sets in feature.sets_on.items():
            _check_sets(catalog, sets, where)
            for key in sets:
                if catalog.allowlist.require(key, where).support(engine) is Support.REFUSED:
                    raise _reference(where, f"the engine {engine} is not given {key}", key)
        if feature.sweep is not None:
            _check_sweep(catalog, name, feature.sweep, where)
        if feature.check_boot is not None:
            _check_sets(catalog, feature.check_boot.sets, where)
    for name, feature in catalog.features.items():
        where = f"{DIRECTORY}/features.yml {name}"
        _check_group(catalog, name, feature, where)
        _check_builds(catalog, feature, where)
        _check_provable(catalog, feature, engines, where)
    _check_no_cycle(catalog)
    for identity, exclusion in catalog.exclusions.items():
        _check_exclusion(catalog, exclusion, f"{DIRECTORY}/exclusions.yml {identity}")


def _check_engine(catalog: Catalog, name: str, engine: Engine) -> None:
    where = f"{DIRECTORY}/engines.yml {name}"
    if engine.ready_evidence not in catalog.evidence:
        raise _reference(where, f"it names the evidence {engine.ready_evidence}, which does not exist", name)
    for feature in engine.switches:
        if feature not in catalog.features or not catalog.features[feature].in_boot:
            raise _reference(where, f"it can switch {feature}, which is no feature with in_boot: true", feature)
    for flag in engine.fixed_flags:
        variable = catalog.allowlist.by_flag(flag)
        if variable is not None and variable.support(name) is not Support.REFUSED:
            raise _reference(where, f"{flag} is fixed, but {variable.name} delivers it too", flag)
    for flag, source in engine.same_as.items():
        variable = catalog.allowlist.require(source, where)
        if variable.scope is not Scope.COMMON or variable.support(name) is Support.REFUSED:
            raise _reference(where, f"{flag} follows {source}, which this engine is not given on every rank", source)


def _references(feature: Feature) -> tuple[EvidenceRef, ...]:
    check = feature.check_boot
    return (*feature.evidence.references, *((*check.must, *check.must_not) if check is not None else ()))


def _check_names(catalog: Catalog, name: str, feature: Feature, engines: frozenset[str], where: str) -> None:
    for other in (*feature.requires, *feature.excludes, *feature.couples, *feature.members, *feature.only_in):
        if other not in catalog.features or other == name:
            raise _reference(where, f"it names the feature {other}, which is not another entry", other)
    for other in feature.requires:
        if not catalog.features[other].sets:
            raise _reference(where, f"it requires {other}, which sets nothing by itself", other)
    for reference in _references(feature):
        if reference.id not in catalog.evidence:
            raise _reference(where, f"it names the evidence {reference.id}, which does not exist", reference.id)
        for engine in reference.engines:
            if not can_show(catalog.evidence[reference.id], reference, engine):
                raise _reference(where, f"{reference.id} is no evidence of the engine {engine}", engine)
    acceptance = () if feature.acceptance is None else feature.acceptance.engines
    for engine in (*feature.unavailable_on, *feature.sets_on, *acceptance):
        if engine not in engines:
            raise _reference(where, f"it names the engine {engine}, which does not exist", engine)
    for stage in feature.stages:
        if not catalog.stages[stage].trial and feature.tried:
            raise _reference(where, f"stage {stage} has no trials", stage)


def _check_sets(catalog: Catalog, sets: Mapping[str, Raw], where: str) -> None:
    for key, value in sets.items():
        _settable(catalog, key, where).check(value, where)


def _settable(catalog: Catalog, key: str, where: str) -> Variable:
    variable = catalog.allowlist.require(key, where)
    if variable.source != "baseline":
        raise _reference(where, f"it sets {key}, whose source is {variable.source}", key)
    return variable


def _check_sweep(catalog: Catalog, name: str, sweep: Sweep, where: str) -> None:
    variable = _settable(catalog, sweep.name, where)
    for value in sweep.values:
        variable.check(value, where)
    for sets in sweep.also.values():
        _check_sets(catalog, sets, where)
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
    needed: set[str] = set()
    for member in feature.members:
        entry = catalog.features[member]
        if entry.kind not in (Kind.CHANGE, Kind.SWEEP):
            raise _reference(where, f"the member {member} is a {entry.kind.value}", member)
        for choice in catalog.choices(member):
            needed |= set(choice.sets) - choice.companions
            for key, value in choice.sets.items():
                offered.setdefault(key, set()).add(value)
    for key, value in catalog.sets_of(name).items():
        if value not in offered.get(key, set()):
            raise _reference(where, f"{key}={value} is nothing that a member sets", key)
    missing = sorted(needed - set(feature.sets))
    if missing and feature.sets:
        raise _reference(where, f"a member sets {missing[0]}, the bundle does not", missing[0])


def _check_builds(catalog: Catalog, feature: Feature, where: str) -> None:
    """The builds that a feature names are those of the matrix on which all its adapters bind."""
    file = catalog.builds
    if file is None:
        return
    for name in feature.engine_adapters:
        if name not in file.adapters:
            raise _reference(where, f"it names the adapter {name}, which has no row in the matrix", name)
    expected = file.binding(feature.engine_adapters) if feature.engine_adapters else ()
    if sorted(feature.builds) != sorted(expected):
        wrong = ", ".join(feature.builds) or "none"
        raise _reference(where, "its builds are not those to which its adapters bind", wrong, ", ".join(expected))


def _check_provable(catalog: Catalog, feature: Feature, engines: frozenset[str], where: str) -> None:
    """On each engine that can run it a line proves that it acts; a switch without effect would look like a result.

    An A/A control switches nothing.
    """
    if feature.same_arms:
        return
    for engine in sorted(engines):
        if feature.refusal_on(engine) is not None:
            continue
        shown = [ref for ref in feature.evidence.must if can_show(catalog.evidence[ref.id], ref, engine)]
        if not shown:
            raise _reference(where, f"{UNPROVEN} {engine}", engine)


def _check_no_cycle(catalog: Catalog) -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise _reference(
                f"{DIRECTORY}/features.yml {name}", "it requires itself: " + " > ".join((*path, name)), name
            )
        for other in catalog.features[name].requires:
            if other not in done:
                visit(other, (*path, name))
        done.add(name)

    for name in catalog.features:
        visit(name, ())


def _check_evidence(catalog: Catalog, evidence: Evidence, engines: frozenset[str], where: str) -> None:
    """Engines exist and are given every variable whose value the pattern holds; what is added to is a whole number."""
    for engine in evidence.engines:
        if engine not in engines:
            raise _reference(where, f"it names the engine {engine}, which does not exist", engine)
    for match in re.finditer(SETTING, evidence.pattern):
        variable = catalog.allowlist.require(match["name"], where)
        if match["add"] is not None and variable.type is not Type.INT:
            raise _reference(where, f"{variable.name} is no whole number to which one can be added", match[0])
        for engine in evidence.engines or sorted(engines):
            if variable.support(engine) is Support.REFUSED:
                raise _reference(where, f"the engine {engine} is not given {variable.name}", match[0])


def _check_exclusion(catalog: Catalog, exclusion: Exclusion, where: str) -> None:
    known = catalog.allowlist.get(exclusion.name)
    if not exclusion.any and (known is None or known.source == NEVER):
        raise _reference(where, f"{exclusion.name} is no variable of an engine, its values cannot be judged", where)
    for value in exclusion.values or ():
        if known is not None:
            known.check(value, where)
    for name, value in exclusion.unless.items():
        catalog.allowlist.require(name, where).check(value, where)
    for name in exclusion.belongs:
        catalog.allowlist.require(name, where)
    for feature in exclusion.off_in:
        if feature not in catalog.features:
            raise _reference(where, f"it names the feature {feature}, which does not exist", feature)


def _reference(where: str, what: str, observed: str, expected: str = "entries that fit together") -> TrisparkError:
    return TrisparkError(
        "TS-CATALOG-REFERENCE",
        what,
        where=where,
        expected=expected,
        observed=observed,
        remedy=f"correct {where}",
    )
