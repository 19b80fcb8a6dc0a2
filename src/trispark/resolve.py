"""The resolver: baseline, feature, site and node become one resolved configuration with all of its files.

resolved (JSON, hashed to the generation id; no boot id, epoch, time or feature name in it):
    schema_version 1, site, engine, image (which the setting ENGINE_IMAGE names), settings {NAME: typed value},
    adapters {path: sha256},
    launch {container options, rendezvous ports, health URL, what to observe},
    gates {layers with an Engram table, canary request and answer, short quality set, bands of the accept length,
    evidence rules}: what a boot of it must show, kept with it so that a rollback is judged by the same rules without
    the controller's catalog,
    ranks [{rank, node, env {str: str}, command [str], mounts [{source, target, read_only}]}]
The spec of a node is a pure function of `resolved`, so equal ids mean equal specs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from trispark.adapters import read_adapters
from trispark.allowlist import (
    ENGINE_IMAGE,
    EXTRA_SOURCE,
    NEVER,
    SITE_IMAGE,
    Kind,
    Scope,
    Support,
    Value,
    Variable,
    format_value,
)
from trispark.canonical import generation_id
from trispark.catalog import DIRECTORY, Catalog, Choice, Engine, EvidenceRule, filled
from trispark.errors import TrisparkError
from trispark.render import ARGS_FILE, ENV_FILE, Templates, parse_args, parse_env
from trispark.site import Node, Site
from trispark_node import ENGINE_NAME
from trispark_node.canonical import sha256_hex
from trispark_node.spec import CACHE_TOKEN, GENERATION_TOKEN, PORT_TOKEN, SPEC_VERSION, STATE_TOKEN

RESOLVED_VERSION: Final = 1
ENGRAM_LAYERS: Final = (1, 14)


@dataclass(frozen=True)
class Resolution:
    """A resolved configuration and all that is made from it.

    id          generation id
    resolved    the hashed JSON object
    specs       {node: spec.json for the node agent}
    files       {node: {"engine.env": text, "launch.args": text}}
    adapters    {path below adapters/: content}; empty when restored from a node's copy
    changed_keys  settings by which it differs from the baseline, sorted
    feature     the feature it was asked for, or None
    evidence    what its logs must and must not show
    """

    id: str
    resolved: dict[str, Any]
    specs: dict[str, dict[str, Any]]
    files: dict[str, dict[str, str]]
    adapters: dict[str, bytes]
    changed_keys: tuple[str, ...] = ()
    feature: str | None = None
    evidence: tuple[EvidenceRule, ...] = field(default=())

    @property
    def nodes(self) -> dict[int, str]:
        """{rank: node name}."""
        return {rank["rank"]: rank["node"] for rank in self.resolved["ranks"]}

    @property
    def settings(self) -> dict[str, Value]:
        """Typed settings common to all ranks."""
        settings: dict[str, Value] = self.resolved["settings"]
        return settings

    @property
    def image_digest(self) -> str:
        """`sha256:...` of the engine image."""
        return str(self.resolved["image"]).partition("@")[2]


@dataclass(frozen=True)
class Difference:
    """What differs between two resolved configurations, as names for a message; empty when nothing does."""

    settings: dict[str, tuple[Value | None, Value | None]]
    other: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.settings or self.other)


@dataclass(frozen=True)
class Arms:
    """Both arms of a trial and what they share.

    choice      what the candidate tries
    base        features that are set in both arms because the tried one requires them
    difference  what the arms differ in, which is what the choice sets and nothing else
    check       the candidate of an uncounted boot before the others that compares results, for features that want one
    """

    choice: Choice
    base: tuple[str, ...]
    baseline: Resolution
    candidate: Resolution
    difference: Difference
    check: Resolution | None = None


def resolve(
    site: Site,
    catalog: Catalog,
    feature: str | None = None,
    overrides: Mapping[str, str] | None = None,
    root: Path = Path(),
    *,
    value: str | None = None,
    promoted: Mapping[str, Value] | None = None,
) -> Resolution:
    """The baseline of `site` (feature None), or the candidate of a trial of `feature`; see `resolve_arms`."""
    if feature is not None:
        return resolve_arms(site, catalog, feature, overrides, root, value=value, promoted=promoted).candidate
    catalog.refuse_misplaced(site.other_keys)
    catalog = catalog.on(site.engine)
    adapters = read_adapters(root)
    settings = _base_settings(site, catalog, overrides or {}, promoted or {})
    catalog.refuse_deferred(settings, {}, "the baseline", promoted=promoted or ())
    return _finished(_build(site, catalog, Templates(root), settings, adapters), adapters, (), None)


def resolve_arms(
    site: Site,
    catalog: Catalog,
    feature: str,
    overrides: Mapping[str, str] | None = None,
    root: Path = Path(),
    *,
    value: str | None = None,
    promoted: Mapping[str, Value] | None = None,
    judge: bool = True,
) -> Arms:
    """Both arms of a trial of `feature`, with the `value` of its sweep.

    `promoted` are the settings of the site's own baseline that differ from the shipped one; `overrides` hold in both
    arms (a what-if) and are strings, parsed by the declared type. `root` is the project's directory (adapters/,
    templates/). The one-change rule is judged from the two resolved configurations; without `judge` that is left to the
    caller (`arm_problems`), who can then show arms that are refused. Errors: TS-ENV-*, TS-PLAN-*, TS-FEATURE-*,
    TS-SITE-*, TS-ADAPTER-*, TS-RENDER-*.
    """
    catalog.refuse_misplaced(site.other_keys)
    catalog = catalog.on(site.engine)
    adapters = read_adapters(root)
    templates = Templates(root)
    common = _base_settings(site, catalog, overrides or {}, promoted or {})
    choice = catalog.choose(feature, value, common)
    for name in choice.sets:
        if overrides and name in overrides:
            raise _misplaced(name, f"it is what {feature} sets")
    base = tuple(other for other in catalog.required_by(feature) if not catalog.is_active(other, common))
    for other in base:
        common.update(catalog.sets_of(other))
    candidate_settings = {**common, **choice.sets}
    if judge:
        where = f"the candidate of {choice.label}"
        catalog.refuse_deferred(candidate_settings, choice.sets, where, feature=feature, promoted=promoted or ())
        _raise_first(settings_problems(site, catalog, choice, base, candidate_settings, adapters))
    baseline = _build(site, catalog, templates, common, adapters)
    candidate = _build(site, catalog, templates, candidate_settings, adapters)
    difference = check_one_change(baseline, candidate, catalog, choice) if judge else compare(baseline, candidate)
    checked = catalog.check_settings(feature)
    check = _build(site, catalog, templates, {**candidate_settings, **checked}, adapters) if checked else None
    return Arms(
        choice,
        base,
        _finished(baseline, adapters, (), None),
        _finished(candidate, adapters, tuple(sorted(choice.sets)), feature),
        difference,
        None if check is None else _finished(check, adapters, tuple(sorted({**choice.sets, **checked})), feature),
    )


def arm_problems(site: Site, catalog: Catalog, arms: Arms) -> Iterator[TrisparkError]:
    """Everything for which `resolve_arms` would have refused these arms, apart from the exclusions."""
    settings, adapters = arms.candidate.settings, arms.candidate.adapters
    yield from settings_problems(site, catalog, arms.choice, arms.base, settings, adapters)
    try:
        check_one_change(arms.baseline, arms.candidate, catalog, arms.choice)
    except TrisparkError as error:
        yield error


def settings_problems(
    site: Site,
    catalog: Catalog,
    choice: Choice,
    base: tuple[str, ...],
    settings: Mapping[str, Value],
    adapters: Mapping[str, bytes],
) -> Iterator[TrisparkError]:
    """What a feature sets must have an effect on the engine, its adapters be there, nothing that it excludes be set."""
    feature = choice.feature
    for name in choice.sets:
        try:
            _require_effect(catalog, name, choice.sets[name], site.engine, f"feature {feature}")
            _refuse_own_value(site, catalog, name, f"feature {feature}")
        except TrisparkError as error:
            yield error
    for path in sorted({path for name in (feature, *base) for path in catalog.features[name].adapters}):
        if path not in adapters:
            yield TrisparkError(
                "TS-FEATURE-ADAPTER",
                f"{feature} needs an adapter that is not there",
                where="adapters/",
                expected=path,
                observed=", ".join(adapters) or "nothing",
                remedy=f"restore adapters/{path} from git, or correct the feature's adapters",
            )
    for other in catalog.features[feature].excludes:
        if catalog.is_active(other, settings):
            yield TrisparkError(
                "TS-FEATURE-EXCLUDES",
                f"{feature} cannot be combined with {other}",
                where=f"{DIRECTORY}/features.yml",
                expected=f"a configuration without {other}",
                observed=", ".join(f"{name}={settings[name]}" for name in catalog.sets_of(other) if name in settings)
                or other,
                remedy=f"try {feature} without {other}: leave out its override, or revert its promotion",
            )


def _raise_first(problems: Iterator[TrisparkError]) -> None:
    for problem in problems:
        raise problem


def restore(resolved: Mapping[str, Any]) -> Resolution:
    """A resolution from a `resolved.json` alone, for gates and records; without rendered files and adapter texts.

    Raises TS-RESOLVED-VERSION.
    """
    plain = dict(resolved)
    if plain.get("schema_version") != RESOLVED_VERSION:
        raise TrisparkError(
            "TS-RESOLVED-VERSION",
            "the resolved configuration has another version",
            where="the stored generation",
            expected=f"schema version {RESOLVED_VERSION}",
            observed=f"schema version {plain.get('schema_version')}",
            remedy="use the trispark that staged it, or stage and boot a generation of this one",
        )
    identity = generation_id(plain)
    specs = {rank["node"]: make_spec(identity, plain, rank["rank"]) for rank in plain["ranks"]}
    rules = tuple(EvidenceRule(**{**rule, "ranks": tuple(rule["ranks"])}) for rule in plain["gates"]["evidence"])
    return Resolution(identity, plain, specs, {}, {}, (), None, rules)


def compare(first: Resolution, second: Resolution) -> Difference:
    """All by which two configurations differ: settings, and the names of everything else (image, adapters, ranks)."""
    a, b = first.resolved, second.resolved
    names = sorted(set(a["settings"]) | set(b["settings"]))
    settings = {
        name: (a["settings"].get(name), b["settings"].get(name))
        for name in names
        if a["settings"].get(name) != b["settings"].get(name)
    }
    other = [
        key
        for key in sorted(set(a) | set(b))
        if key not in ("settings", "adapters", "ranks", "gates") and a.get(key) != b.get(key)
    ]
    for path in sorted(set(a["adapters"]) | set(b["adapters"])):
        if a["adapters"].get(path) != b["adapters"].get(path):
            other.append(f"adapters/{path}")
    ranks_a, ranks_b = ({rank["rank"]: rank for rank in side["ranks"]} for side in (a, b))
    for rank in sorted(set(ranks_a) | set(ranks_b)):
        if rank not in ranks_a or rank not in ranks_b:
            other.append(f"rank {rank}")
            continue
        other += _rank_difference(rank, ranks_a[rank], ranks_b[rank])
    return Difference(settings, tuple(other))


def check_one_change(baseline: Resolution, candidate: Resolution, catalog: Catalog, choice: Choice) -> Difference:
    """Raises TS-PLAN-ONECHANGE unless the two differ in exactly what the choice sets; returns the difference.

    Only what the catalog declares as an A/A control may set nothing; its arms must then be one configuration.
    """
    difference = compare(baseline, candidate)
    sets = choice.sets
    if not sets and not catalog.features[choice.feature].same_arms:
        raise TrisparkError(
            "TS-PLAN-ONECHANGE",
            f"the candidate of {choice.label} is not one change: it sets nothing",
            where=f"{baseline.id} and {candidate.id}",
            expected="a setting that it changes, or an entry that is declared as an A/A control",
            observed="nothing",
            remedy="plan a feature that sets something, or -e feature=none for an A/A trial",
        )
    engine = catalog.engines[str(baseline.resolved["engine"])]
    if ENGINE_IMAGE in sets and ENGINE_IMAGE in difference.settings and baseline.image_digest == candidate.image_digest:
        raise TrisparkError(
            "TS-PLAN-IMAGE-SAME",
            f"the candidate of {choice.label} would run the very image of the baseline",
            where=" and ".join(f"image {name}" for name in map(str, difference.settings[ENGINE_IMAGE])),
            expected="two digests",
            observed=str(candidate.resolved["image"]),
            remedy="give the site's further image the digest of another build",
        )
    allowed = {f"{name} of rank {rank}" for name in _delivery_names(catalog, engine, sets) for rank in baseline.nodes}
    allowed |= {"image"} if ENGINE_IMAGE in sets else set()
    surplus = sorted(set(difference.settings) - set(sets)) + [name for name in difference.other if name not in allowed]
    unchanged = sorted(set(sets) - set(difference.settings) - choice.companions)
    wrong = sorted(name for name in set(sets) & set(difference.settings) if difference.settings[name][1] != sets[name])
    if surplus or unchanged or wrong:
        if surplus:
            what, observed = f"{surplus[0]} differs too", ", ".join(surplus)
        elif unchanged:
            what, observed = f"{unchanged[0]} has that value in the baseline already", ", ".join(unchanged)
        else:
            what, observed = f"{wrong[0]} has another value than the feature sets", ", ".join(wrong)
        raise TrisparkError(
            "TS-PLAN-ONECHANGE",
            f"the candidate of {choice.label} is not one change: {what}",
            where=f"{baseline.id} and {candidate.id}",
            expected=(", ".join(f"{name}={format_value(value)}" for name, value in sorted(sets.items())) or "no change")
            + " and nothing else",
            observed=observed,
            remedy="plan both arms from the same site, image, adapters and overrides",
        )
    return difference


def make_spec(identity: str, resolved: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """spec.json of one rank, a function of the resolved configuration alone."""
    own = next(entry for entry in resolved["ranks"] if entry["rank"] == rank)
    launch = resolved["launch"]
    return {
        "spec_version": SPEC_VERSION,
        "generation": identity,
        "rank": rank,
        "world_size": len(resolved["ranks"]),
        "rendezvous_ports": list(launch["rendezvous_ports"]),
        "container": {
            "name": ENGINE_NAME,
            "image": resolved["image"],
            "command": list(own["command"]),
            "env": dict(own["env"]),
            "mounts": [dict(mount) for mount in own["mounts"]],
            **launch["container"],
        },
        "ready": {"url": launch["ready_url"]},
        "observe": {
            "packages": list(launch["packages"]),
            "version_command": list(launch["version_command"]),
            **_observed_places(launch),
        },
    }


def _observed_places(launch: Mapping[str, Any]) -> dict[str, Any]:
    """What the agent hashes; nothing in a configuration that was resolved by an older version."""
    identity = launch.get("identity")
    if identity is None:
        return {}
    return {"identity": {name: identity[name] for name in ("sources", "compiled", "autotune")}}


def _finished(
    built: Resolution, adapters: dict[str, bytes], changed: tuple[str, ...], feature: str | None
) -> Resolution:
    rules = restore(built.resolved).evidence
    return Resolution(built.id, built.resolved, built.specs, built.files, adapters, changed, feature, rules)


def _base_settings(
    site: Site, catalog: Catalog, overrides: Mapping[str, str], promoted: Mapping[str, Value]
) -> dict[str, Value]:
    """Typed values of all variables common to the ranks that this site's engine is given."""
    for name in sorted(promoted):
        if catalog.allowlist.require(name, "the promoted baseline").source != "baseline":
            raise _misplaced(name, "it is no key of a baseline")
    if site.engine not in catalog.engines:
        raise TrisparkError(
            "TS-SITE-ENGINE",
            "the site names an engine that this version cannot run",
            where=str(site.path),
            expected="one of " + ", ".join(catalog.engines),
            observed=site.engine,
            remedy="correct site_engine",
        )
    settings: dict[str, Value] = {}
    for variable in catalog.allowlist.variables():
        if variable.scope is Scope.RANK or variable.support(site.engine) is Support.REFUSED:
            continue
        if variable.source == EXTRA_SOURCE:
            continue
        if variable.source == "baseline":
            value = promoted.get(variable.name, catalog.baseline[variable.name])
        else:
            value = variable.check(given_value(site, catalog, variable), f"{site.path} ({variable.source})")
        _require_inert_value(variable, value, site.engine, f"{DIRECTORY}/baseline.yml")
        settings[variable.name] = value
    for name in sorted(site.extra_container_env):
        settings[name] = extra_value(site, catalog, name)
    for name in sorted(overrides):
        where = f"override {name}"
        probe = {name: overrides[name]}
        catalog.refuse_excluded(probe, where)
        variable = catalog.allowlist.require(name, where)
        if variable.source == NEVER:
            raise TrisparkError(
                "TS-ENV-REFUSED",
                f"{name} is given to no engine: {variable.description}",
                where=where,
                expected="a key of experiments/baseline.yml",
                observed=name,
                remedy=f"remove the override {name}",
            )
        if variable.source != "baseline":
            raise _misplaced(name, f"its value comes from {variable.source}")
        if not isinstance(overrides[name], str):
            raise TrisparkError(
                "TS-ENV-TYPE",
                f"the override {name} is not a string",
                where,
                expected="a string",
                observed=variable.shown(probe[name]),
                remedy=f"give {name} as text",
            )
        value = variable.parse(overrides[name], where)
        _require_effect(catalog, name, value, site.engine, where)
        _refuse_own_value(site, catalog, name, where)
        settings[name] = value
    return settings


def rank_settings(site: Site, catalog: Catalog, settings: Mapping[str, Value], node: Node) -> dict[str, Value]:
    """`settings` with what this node has of its own: its rank, addresses and devices, and values in place of common
    ones. Errors are those of `node_value`."""
    own = dict(settings)
    for variable in catalog.allowlist.variables():
        value = node_value(site, catalog, variable, node)
        if value is not None:
            own[variable.name] = value
    return own


def node_value(site: Site, catalog: Catalog, variable: Variable, node: Node) -> Value | None:
    """The value of a variable that comes from this node; None when it comes from elsewhere, or its type is a list.

    Raises TS-ENV-*, TS-PLAN-EXCLUDED, and TS-SITE-NODE where the engine needs what the node does not say.
    """
    source = variable.source if variable.scope is Scope.RANK else variable.node_source
    if source is None or variable.support(site.engine) is Support.REFUSED:
        return None
    key = source.removeprefix("rank.")
    raw = getattr(node, key)
    if variable.scope is Scope.RANK and raw in (None, ()) and len(site.nodes) > 1:
        raise TrisparkError(
            "TS-SITE-NODE",
            f"the engine {site.engine} needs {variable.name} on every rank",
            where=f"{site.path}/hosts.yml {node.name}",
            expected=f"node_{key}",
            observed="nothing",
            remedy=f"set node_{key} of {node.name}",
        )
    if raw in (None, ()) or variable.type is Kind.PAIR_LINK:
        return None
    where = f"{site.path}/hosts.yml {node.name}.node_{key}"
    value = variable.check(",".join(raw) if isinstance(raw, tuple) else raw, where)
    _require_inert_value(variable, value, site.engine, where)
    catalog.refuse_excluded({variable.name: value}, where)
    return value


def _refuse_own_value(site: Site, catalog: Catalog, name: str, where: str) -> None:
    """A value that does not reach every rank would be half a change."""
    variable = catalog.allowlist.require(name, where)
    if variable.node_source is None:
        return
    key = variable.node_source.removeprefix("rank.")
    for node in site.nodes:
        if getattr(node, key) is not None:
            raise TrisparkError(
                "TS-PLAN-NODE",
                f"{name} cannot be changed on all ranks, {node.name} has a value of its own",
                where=where,
                expected=f"no node_{key} in {site.path}/hosts.yml",
                observed=f"node_{key}: {getattr(node, key)}",
                remedy=f"remove node_{key} of {node.name}, or change it there",
            )


def extra_value(site: Site, catalog: Catalog, name: str) -> Value:
    """The typed value of one entry of site_extra_container_env. Raises TS-ENV-*, TS-PLAN-EXCLUDED, TS-PLAN-PLACE."""
    where = f"{site.path} site_extra_container_env.{name}"
    raw = site.extra_container_env[name]
    if isinstance(raw, int | float | str):
        catalog.refuse_excluded({name: raw}, where)
    variable = catalog.allowlist.require(name, where)
    if variable.source != EXTRA_SOURCE:
        raise TrisparkError(
            "TS-PLAN-PLACE",
            f"{name} cannot be given in site_extra_container_env",
            where=where,
            expected=f"a variable whose source is {EXTRA_SOURCE}",
            observed=f"its value comes from {variable.source}",
            remedy=f"remove it there; its place is {variable.source}",
        )
    value = variable.check(raw, where)
    _require_effect(catalog, name, value, site.engine, where)
    return value


def given_value(site: Site, catalog: Catalog, variable: Variable) -> object:
    """What the site or its engine's entry gives a variable, not checked yet."""
    if variable.source == "head.rendezvous":
        return f"{site.head.address}:{PORT_TOKEN}"
    if variable.source.startswith("engine."):
        return getattr(catalog.engines[site.engine], variable.source.removeprefix("engine."))
    key = variable.source.removeprefix("site.")
    if key not in type(site).model_fields:
        raise TrisparkError(
            "TS-CATALOG-REFERENCE",
            f"{variable.name} takes its value from {variable.source}, which no site has",
            where=f"{DIRECTORY}/env_allowlist.yml",
            expected="a key of the site's files",
            observed=variable.source,
            remedy=f"correct the source of {variable.name}",
        )
    return getattr(site, key)


def _require_effect(catalog: Catalog, name: str, value: Value, engine: str, where: str) -> None:
    """A key that the engine refuses, or has no effect there, cannot be changed."""
    variable = catalog.allowlist.require(name, where)
    if variable.support(engine) is Support.REFUSED:
        raise TrisparkError(
            "TS-ENV-REFUSED",
            f"{name} is refused by the engine {engine}",
            where=where,
            expected="a variable of that engine",
            observed=name,
            remedy=f"leave out {name}; {DIRECTORY}/env_allowlist.yml says which engine takes what",
        )
    _require_inert_value(variable, value, engine, where)


def _require_inert_value(variable: Variable, value: Value, engine: str, where: str) -> None:
    if variable.support(engine) is not Support.INERT or variable.inert_value is None:
        return
    only = variable.check(variable.inert_value, f"{DIRECTORY}/env_allowlist.yml")
    if value != only:
        raise TrisparkError(
            "TS-ENV-INERT",
            f"{variable.name} has no effect in the engine {engine}, only its production value is accepted there",
            where=where,
            expected=format_value(only),
            observed=variable.shown(value),
            remedy=f"set {variable.name} to {format_value(only)}, or leave it out",
        )


def _build(
    site: Site, catalog: Catalog, templates: Templates, settings: Mapping[str, Value], adapters: Mapping[str, bytes]
) -> Resolution:
    """Resolved configuration, files and specs. Env and command come from the parsed text of the rendered files."""
    catalog.refuse_excluded(settings, "the resolved configuration")
    if settings.get("TP_SIZE", site.world_size) != site.world_size:
        raise TrisparkError(
            "TS-PLAN-WORLD",
            "TP_SIZE is not the number of ranks of the site",
            where=str(site.path),
            expected=str(site.world_size),
            observed=str(settings.get("TP_SIZE")),
            remedy="correct site_world_size and the hosts, or TP_SIZE",
        )
    engine = catalog.engines[site.engine]
    ranks: list[dict[str, Any]] = []
    files: dict[str, dict[str, str]] = {}
    for node in site.nodes:
        own = rank_settings(site, catalog, settings, node)
        env_text = templates.render_env(_rank_env(catalog, site, own, node))
        args_text = templates.render_args(_rank_command(catalog, site, engine, own, node))
        files[node.name] = {ENV_FILE: env_text, ARGS_FILE: args_text}
        ranks.append(
            {
                "rank": node.rank,
                "node": node.name,
                "env": parse_env(env_text),
                "command": parse_args(args_text),
                "mounts": _mounts(site, engine, node),
            }
        )
    resolved: dict[str, Any] = {
        "schema_version": RESOLVED_VERSION,
        "site": site.name,
        "engine": site.engine,
        "image": site.image_named(str(settings.get(ENGINE_IMAGE, SITE_IMAGE))),
        "settings": dict(sorted(settings.items())),
        "adapters": {path: sha256_hex(content) for path, content in sorted(adapters.items())},
        "launch": _launch(site, engine),
        "gates": _gates(site, catalog, settings),
        "ranks": ranks,
    }
    identity = generation_id(resolved)
    specs = {node.name: make_spec(identity, resolved, node.rank) for node in site.nodes}
    return Resolution(identity, resolved, specs, files, dict(adapters))


def _gates(site: Site, catalog: Catalog, settings: Mapping[str, Value]) -> dict[str, Any]:
    """What a boot must show. The evidence follows from the settings, so `compare` need not look at it again."""
    engine = catalog.engines[site.engine]
    ready = catalog.evidence[engine.ready_evidence]
    rules = [
        EvidenceRule(engine.ready_evidence, True, filled(ready.pattern, settings), (0,), ready.proves),
        *catalog.evidence_rules(settings, len(site.nodes), site.engine),
    ]
    ordered = sorted(set(rules), key=lambda rule: (rule.id, not rule.must_appear, rule.ranks))
    smoke = engine.smoke
    return {
        "layers": list(ENGRAM_LAYERS),
        "canary": {
            "url": f"http://127.0.0.1:{site.api_port}/v1/chat/completions",
            "model": site.served_model_name,
            "prompt": smoke.prompt,
            "text": smoke.text,
            "max_tokens": smoke.max_tokens,
            "timeout_s": smoke.timeout_s,
            "body": smoke.body,
        },
        "batch": engine.batch_check.model_dump(mode="json"),
        "quality": {
            "set": catalog.quality[site.engine].short_set(),
            "repeat": catalog.quality[site.engine].short.workload in site.quality_repeats,
        },
        "accept_bands": [list(band) for band in catalog.accept_bands(settings, site.engine)],
        "evidence": [{**asdict(rule), "ranks": list(rule.ranks)} for rule in ordered],
    }


def _launch(site: Site, engine: Engine) -> dict[str, Any]:
    """What every rank's container has alike."""
    if site.privileged and engine.privileged == "never":
        raise TrisparkError(
            "TS-SITE-PRIVILEGED",
            f"the engine {site.engine} is never privileged",
            where=str(site.path),
            expected="site_privileged: false, or none",
            observed="site_privileged: true",
            remedy="remove site_privileged",
        )
    ready_url = f"http://127.0.0.1:{site.api_port}{engine.health_path}"
    check = engine.healthcheck
    return {
        "container": {
            "network_mode": "host",
            "ipc_mode": engine.ipc_mode,
            "shm_size": engine.shm_size,
            "ulimits": [limit.model_dump() for limit in engine.ulimits],
            "devices": list(engine.devices),
            "cap_add": list(engine.cap_add),
            "gpus": engine.gpus,
            "privileged": site.privileged,
            "keep_entrypoint": engine.keep_entrypoint,
            "healthcheck": None
            if check is None
            else {**check.model_dump(), "test": [word.replace("{ready_url}", ready_url) for word in check.test]},
            "stop_timeout_s": math.ceil(site.stop_deadline_s),
        },
        "rendezvous_ports": list(site.rendezvous_ports),
        "ready_url": ready_url,
        "packages": list(engine.packages),
        "version_command": list(engine.version_command),
        "image_env": list(engine.image_env),
        "identity": engine.identity.model_dump(mode="json"),
    }


def _mounts(site: Site, engine: Engine, node: Node) -> list[dict[str, Any]]:
    """Whatever the engine serves from is read-only; it writes into its generation's state and the node's cache alone.

    The agent makes the directories behind its tokens, and no others.
    """
    mounts: tuple[tuple[str, str | None, bool], ...] = (
        (site.checkpoint_dir_of(node), site.checkpoint_mount, True),
        (site.engram_dir_of(node), site.engram_mount, True),
        (f"{GENERATION_TOKEN}/adapters", engine.adapters_mount, True),
        (f"{STATE_TOKEN}/state", engine.state_mount, False),
        (CACHE_TOKEN, engine.cache_mount, False),
        # After the cache, in which it lies.
        (f"{STATE_TOKEN}/autotune", engine.autotune_mount, False),
    )
    return [
        {"source": source, "target": target, "read_only": read_only}
        for source, target, read_only in mounts
        if target is not None
    ]


def _rank_env(catalog: Catalog, site: Site, settings: Mapping[str, Value], node: Node) -> dict[str, str]:
    return {
        variable.name: format_value(settings[variable.name])
        for variable in catalog.allowlist.variables()
        if variable.env
        and variable.reaches(site.engine, node.rank)
        and variable.name in settings
        and not variable.is_omitted(settings[variable.name])
    }


def _rank_command(catalog: Catalog, site: Site, engine: Engine, settings: Mapping[str, Value], node: Node) -> list[str]:
    """The engine's command, what it is always given, then the flags of variables, sorted by flag, each value in its own
    argument."""
    flags = [[flag, format_value(settings[name])] for flag, name in engine.same_as.items()]
    for variable in catalog.allowlist.variables():
        if variable.flag is None or not variable.reaches(site.engine, node.rank):
            continue
        if variable.type is Kind.PAIR_LINK:
            flags += [[variable.flag, f"{link.peer}:{link.local}:{link.remote}"] for link in node.pair_links]
        elif variable.name in settings:
            flags.append(variable.arguments(settings[variable.name]))
    ordered = sorted((words for words in flags if words), key=lambda words: words[0])
    return [*engine.command, *engine.fixed_args, *(word for words in ordered for word in words)]


def _rank_difference(rank: int, first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    names = [f"{name} of rank {rank}" for name in _differing(first["env"], second["env"])]
    names += [
        f"{flag} of rank {rank}" for flag in _differing(flag_groups(first["command"]), flag_groups(second["command"]))
    ]
    names += [f"{key} of rank {rank}" for key in ("node", "mounts") if first[key] != second[key]]
    return names


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in set(first) | set(second) if first.get(name) != second.get(name))


def flag_groups(command: list[str]) -> dict[str, list[str]]:
    """Arguments grouped by the flag before them; the program itself under "command"."""
    groups: dict[str, list[str]] = {"command": []}
    current = "command"
    for argument in command:
        if argument.startswith("--"):
            current = argument
            groups.setdefault(current, []).append("")
        else:
            groups[current].append(argument)
    return groups


def _delivery_names(catalog: Catalog, engine: Engine, sets: Mapping[str, Value]) -> set[str]:
    names: set[str] = {flag for flag, source in engine.same_as.items() if source in sets}
    for name in sets:
        variable = catalog.allowlist.require(name, "one-change rule")
        names |= ({name} if variable.env else set()) | ({variable.flag} if variable.flag else set())
    return names


def _misplaced(name: str, why: str) -> TrisparkError:
    return TrisparkError(
        "TS-PLAN-PLACE",
        f"{name} cannot be overridden: {why}",
        where=f"override {name}",
        expected="a baseline key that no chosen feature sets",
        observed=name,
        remedy=f"remove the override {name}",
    )
