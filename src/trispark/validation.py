"""All that is wrong in catalog, baseline, allowlist, exclusions, site and templates, not the first problem alone.

A boot and a plan stop at the first problem of these files. Here each file is judged as a whole, then the references
between them: the loader names the first entry whose references lead nowhere, that entry is looked at piece by piece and
put aside, and the rest is judged again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from trispark.adapters import read_adapters
from trispark.allowlist import NEVER, Allowlist, AllowlistFile, Support, Variable
from trispark.catalog import (
    DIRECTORY,
    STAGES,
    BaselineFile,
    Catalog,
    EnginesFile,
    EvidenceFile,
    ExclusionsFile,
    Feature,
    FeaturesFile,
    Kind,
    Stage,
    StagesFile,
    assemble,
)
from trispark.catalog_check import UNPROVEN, judge_baseline
from trispark.errors import TrisparkError
from trispark.plainyaml import judge_model, read_yaml
from trispark.plan import Ground, judge_excluded
from trispark.quality.model import QualityFile
from trispark.resolve import resolve, settings_problems
from trispark.site_check import check_site

FILES: Final[dict[str, type[BaseModel]]] = {
    "env_allowlist.yml": AllowlistFile,
    "baseline.yml": BaselineFile,
    "features.yml": FeaturesFile,
    "stages.yml": StagesFile,
    "evidence.yml": EvidenceFile,
    "exclusions.yml": ExclusionsFile,
    "engines.yml": EnginesFile,
    "quality.yml": QualityFile,
}
"""In the order in which `assemble` takes them."""
ENTRIES: Final = {
    "features.yml": "features",
    "stages.yml": "stages",
    "evidence.yml": "evidence",
    "exclusions.yml": "exclusions",
    "engines.yml": "engines",
}
PIECES: Final = ("requires", "excludes", "couples", "members", "only_in", "stages", "unavailable_on", "sets")
"""Fields of a feature whose elements are looked at one by one."""
Files = Mapping[str, Any]


def problems_of(root: Path, site_name: str) -> list[TrisparkError]:
    """All problems, each once, in the order of the files; places are relative to `root`."""
    catalog, found = catalog_problems(root)
    if catalog is not None:
        site = check_site(root, site_name).problems
        found += site
        if not site:
            try:
                found += _together(Ground.load(root, site_name))
            except TrisparkError as error:
                found.append(error)
    unique = {str(problem): _relative(problem, root) for problem in found}
    return list(unique.values())


def catalog_problems(root: Path) -> tuple[Catalog | None, list[TrisparkError]]:
    """(the catalog, nothing), or (None, its problems)."""
    found: list[TrisparkError] = []
    files: dict[str, Any] = {}
    for name, model in FILES.items():
        try:
            data = read_yaml(root / DIRECTORY / name)
        except TrisparkError as error:
            found.append(error)
            continue
        checked, problems = judge_model(model, data, f"{DIRECTORY}/{name}", "TS-CATALOG-SCHEMA")
        found += problems
        if checked is not None:
            files[name] = checked
    if found:
        return None, found
    try:
        return _assembled(files), []
    except TrisparkError:
        return None, list(_references(files))


def _assembled(files: Files) -> Catalog:
    return assemble(*(files[name] for name in FILES))


def _error_of(files: Files) -> TrisparkError | None:
    try:
        _assembled(files)
    except TrisparkError as error:
        return error
    return None


def _references(files: Files) -> Iterator[TrisparkError]:
    """Problems between the files. Ends where the rest cannot be judged with what is wrong put aside."""
    yield from (found for _, found in _judged_baseline(files) if isinstance(found, TrisparkError))
    rest: Files | None = _with_baseline(files)
    seen: set[str] = set()
    while rest is not None and (error := _error_of(rest)) is not None:
        if str(error) in seen:  # it could not be put aside
            return
        seen.add(str(error))
        yield error
        file, _, entry = error.where.removeprefix(f"{DIRECTORY}/").partition(" ")
        if file == "baseline.yml":
            yield from _excluded_baseline(rest)
            rest = _with(rest, "exclusions.yml", {})
        elif file == "env_allowlist.yml":
            rest = _with_neutral_variable(rest, entry)
        elif file == "stages.yml" and entry in _stages(rest):
            rest = _with(rest, file, {**_stages(rest), entry: _stage_without(_stages(rest)[entry], None)})
        elif file == "stages.yml":
            rest = _with_all_stages(rest)
        elif file == "features.yml" and entry in rest[file].features:
            yield from _pieces(rest, entry)
            rest = _without_feature(rest, entry)
        elif file in ENTRIES and entry in getattr(rest[file], ENTRIES[file]):
            rest = _neutral_entry(rest, file, entry)
        else:
            rest = None


def _with(files: Files, file: str, entries: Mapping[str, Any]) -> Files:
    return {**files, file: files[file].model_copy(update={ENTRIES[file]: dict(entries)})}


def _with_all_stages(files: Files) -> Files | None:
    stages = files["stages.yml"].stages
    if not stages:
        return None
    return _with(files, "stages.yml", {**dict.fromkeys(STAGES, next(iter(stages.values()))), **stages})


def _judged_baseline(files: Files) -> Iterator[tuple[str, Any]]:
    return judge_baseline(Allowlist(files["env_allowlist.yml"]), files["baseline.yml"].settings)


def _with_baseline(files: Files) -> Files | None:
    """The files with a right value for every wrong or missing key; None when there is none to be found."""
    allowlist = Allowlist(files["env_allowlist.yml"])
    settings = {name: value for name, value in _judged_baseline(files) if not isinstance(value, TrisparkError)}
    for variable in allowlist.variables():
        if variable.source == "baseline" and variable.name not in settings:
            stand_in = _any_value(variable)
            if stand_in is None:
                return None
            settings[variable.name] = stand_in
    return {**files, "baseline.yml": files["baseline.yml"].model_copy(update={"settings": settings})}


def _any_value(variable: Variable) -> Any:
    """Some value that the allowlist accepts."""
    for value in (variable.inert_value, *(variable.choices or ()), variable.min, variable.max, 0, 1, 0.5, "x", "/x"):
        try:
            return variable.check(value, "a stand-in")
        except TrisparkError:
            continue
    return None


def _excluded_baseline(files: Files) -> Iterator[TrisparkError]:
    exclusions = files["exclusions.yml"].exclusions
    for name in sorted(exclusions):
        error = _error_of(_with(files, "exclusions.yml", {name: exclusions[name]}))
        if error is not None:
            yield error


def _with_neutral_variable(files: Files, name: str) -> Files | None:
    """The allowlist with a variable that names every engine and no value; None when that mends nothing."""
    file = files["env_allowlist.yml"]
    engines = {engine for variable in file.variables for engine in variable.engines} | set(files["engines.yml"].engines)
    changed = []
    for variable in file.variables:
        if variable.name == name:
            # Implemented where that can be, so that what refers to it is judged as with a right entry.
            filler = Support.REFUSED if variable.source == NEVER else Support.IMPLEMENTED
            every = {**dict.fromkeys(engines, filler), **variable.engines}
            update = {"engines": every, "inert_value": None, "omit_value": None, "default": None}
            variable = variable.model_copy(update=update)
        changed.append(variable)
    if tuple(changed) == file.variables:
        return None
    return {**files, "env_allowlist.yml": file.model_copy(update={"variables": tuple(changed)})}


def _neutral_entry(files: Files, file: str, entry: str) -> Files | None:
    """Exclusions are left out; evidence and engines, which others name, stay without what can be wrong in them."""
    entries = dict(getattr(files[file], ENTRIES[file]))
    if file == "exclusions.yml":
        del entries[entry]
    elif file == "evidence.yml":
        entries[entry] = entries[entry].model_copy(update={"pattern": "x", "engines": ()})
    else:
        return None
    return None if entries == getattr(files[file], ENTRIES[file]) else _with(files, file, entries)


def _without_feature(files: Files, name: str) -> Files:
    """Without an entry and what names it; a bundle that it belongs to goes too, for it cannot be judged alone."""
    features: Mapping[str, Feature] = files["features.yml"].features
    gone = {name} | {other for other, entry in features.items() if name in entry.members}
    kept = {
        other: entry.model_copy(
            update={
                field: tuple(each for each in getattr(entry, field) if each not in gone)
                for field in ("requires", "excludes", "couples", "only_in")
            }
        )
        for other, entry in features.items()
        if other not in gone
    }
    files = _with(files, "features.yml", kept)
    exclusions = {
        identity: entry.model_copy(update={"off_in": tuple(each for each in entry.off_in if each not in gone)})
        for identity, entry in files["exclusions.yml"].exclusions.items()
    }
    files = _with(files, "exclusions.yml", exclusions)
    engines = {
        engine: entry.model_copy(update={"switches": tuple(each for each in entry.switches if each not in gone)})
        for engine, entry in files["engines.yml"].engines.items()
    }
    files = _with(files, "engines.yml", engines)
    return _with(files, "stages.yml", {letter: _stage_without(row, gone) for letter, row in _stages(files).items()})


def _stages(files: Files) -> Mapping[str, Stage]:
    stages: Mapping[str, Stage] = files["stages.yml"].stages
    return stages


def _stage_without(row: Stage, gone: set[str] | None) -> Stage:
    """A stage whose criteria do not name some features (None: no feature at all)."""
    return row.model_copy(
        update={
            field: tuple(
                criterion.model_copy(
                    update={"features": tuple(name for name in criterion.features if gone and name not in gone)}
                )
                for criterion in getattr(row, field)
            )
            for field in ("entry", "exit")
        }
    )


def _pieces(files: Files, name: str) -> Iterator[TrisparkError]:
    """Problems of one feature with one of its references at a time; what is wrong without any of them is not theirs."""
    entry: Feature = files["features.yml"].features[name]
    pieces = [field for field in PIECES if not (entry.kind is Kind.BUNDLE and field in ("members", "sets"))]
    bare: dict[str, Any] = {field: type(getattr(entry, field))() for field in pieces}
    evidence = {kind: () for kind in ("must", "must_not", "off_must_not")}
    bare["evidence"] = entry.evidence.model_copy(update=evidence)
    variants: list[dict[str, Any]] = []
    for field in pieces:
        value = getattr(entry, field)
        if isinstance(value, Mapping):
            variants += [{**bare, field: {key: value[key]}} for key in value]
        else:
            variants += [{**bare, field: (each,)} for each in value]
    for kind in evidence:
        for reference in getattr(entry.evidence, kind):
            variants.append({**bare, "evidence": bare["evidence"].model_copy(update={kind: (reference,)})})
    if entry.sweep is not None:
        for value in entry.sweep.values:
            variants.append({**bare, "sweep": entry.sweep.model_copy(update={"values": (value,), "also": {}})})
        for value, sets in entry.sweep.also.items():
            for key in sets:
                also = {value: {key: sets[key]}}
                variants.append({**bare, "sweep": entry.sweep.model_copy(update={"also": also})})
        bare["sweep"] = entry.sweep
    own = {str(error) for error in (_error_of(_changed(files, name, bare)),) if error is not None}
    for variant in variants:
        error = _error_of(_changed(files, name, variant))
        # With one reference at a time, that nothing proves the feature is no problem of its own.
        if error is None or str(error) in own or error.what.startswith(UNPROVEN):
            continue
        if error.where.endswith(f" {name}"):
            yield error


def _changed(files: Files, name: str, update: Mapping[str, Any]) -> Files:
    features = files["features.yml"].features
    return _with(files, "features.yml", {**features, name: features[name].model_copy(update=dict(update))})


def _together(ground: Ground) -> Iterator[TrisparkError]:
    """Each feature that this site's engine can run, on the site's baseline: effect, adapters, exclusions, a change."""
    site, catalog, root = ground.site, ground.catalog, ground.root
    adapters = read_adapters(root)
    baseline = resolve(site, catalog, None, None, root, promoted=ground.promoted).settings
    for name, entry in catalog.features.items():
        # What is tried in a bundle alone is judged with the bundle.
        if entry.refusal_on(site.engine) is not None or entry.kind is Kind.BASELINE or entry.only_in:
            continue
        base = tuple(other for other in catalog.required_by(name) if not catalog.is_active(other, baseline))
        common = dict(baseline)
        for other in base:
            common.update(catalog.sets_of(other))
        for choice in catalog.choices(name, common):
            candidate = {**common, **choice.sets}
            found = [*settings_problems(site, catalog, choice, base, candidate, adapters)]
            found += judge_excluded(catalog, candidate, choice, ground.promoted)[0]
            if candidate == common and not ground.promoted and not entry.same_arms:
                found.append(
                    TrisparkError(
                        "TS-PLAN-ONECHANGE",
                        f"{choice.label} changes nothing",
                        where=f"{DIRECTORY}/features.yml",
                        expected="another value than the baseline's",
                        observed=", ".join(choice.sets),
                        remedy=f"correct {DIRECTORY}/features.yml",
                    )
                )
            yield from (_of_feature(error, choice.label) for error in found)


def _of_feature(error: TrisparkError, label: str) -> TrisparkError:
    fields = error.as_dict()
    return TrisparkError(**{**fields, "where": f"{DIRECTORY}/features.yml {label}"})


def _relative(problem: TrisparkError, root: Path) -> TrisparkError:
    return TrisparkError(**{key: value.replace(f"{root}/", "") for key, value in problem.as_dict().items()})
