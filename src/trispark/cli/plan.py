"""``./trispark plan``: its arguments, and a plan for a person."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trispark.cli.play import parse_extra
from trispark.errors import TrisparkError

if TYPE_CHECKING:
    from trispark.plan import Ground

EVERY = "every boot"
NAMES = ("feature", "value", "boots")
"""What ``-e`` may give to a plan, as to a stage playbook."""


def parse_sets(pairs: Iterable[str]) -> dict[str, str]:
    """``--set NAME=value`` as given. Raises TS-CLI-SET for another form, or a name that is given two values."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name or found.get(name, value) != value:
            twice = bool(equals and name)
            raise TrisparkError(
                id="TS-CLI-SET",
                what="--set takes NAME=value, each name once",
                where="--set",
                expected="for example --set MEM_FRACTION_STATIC=0.95",
                observed=f"{name} twice, with different values" if twice else pair,
                remedy="give one value for each name",
            )
        found[name] = value
    return found


def plan_arguments(ground: Ground, extra: Iterable[str]) -> tuple[str | None, str | None, int | None]:
    """(feature, value, boots) of ``-e``. Raises TS-CLI-EXTRA, TS-PLAN-BOOTS, and TS-PLAN-PLACE for a key of the catalog
    (for ``--set``)."""
    from trispark.plan import read_boots

    given = parse_extra(extra)
    ground.catalog.refuse_misplaced({name: "-e; a what-if is given by --set" for name in given if name not in NAMES})
    for name in given:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1)
            raise TrisparkError(
                id="TS-CLI-EXTRA",
                what=f"a plan takes no -e {name}",
                where="-e",
                expected=" and ".join(f"-e {each}" for each in NAMES),
                observed=name,
                remedy=f"-e {near[0]}={given[name]}" if near else f"leave out -e {name}; a what-if is given by --set",
            )
    return given.get("feature") or None, given.get("value") or None, read_boots(given.get("boots", ""))


def run_plan(repo: Path, site: str, stage: str, extra: Iterable[str], sets: Iterable[str]) -> dict[str, Any]:
    """What `make_plan` gives; every single plan is kept below ``.trispark`` so that a trial can name what changed."""
    from trispark.plan import Ground, keep_plan, plan_on, plans_of

    overrides = parse_sets(sets)
    parse_extra(extra)
    ground = Ground.load(repo, site)
    feature, value, boots = plan_arguments(ground, extra)
    plan = plan_on(ground, stage, feature, value, overrides, boots=boots)
    for each in plans_of(plan):
        try:
            keep_plan(repo, each)
        except OSError:  # a read-only checkout can be planned in all the same
            break
    return plan


def provenance_note(repo: Path, site: str, plans: Iterable[Mapping[str, Any]]) -> str | None:
    """What a boot of these plans would find of its images' signatures; None where the site demands none.

    No part of a plan: what is kept of an image's origin, and the day, must not make another plan of it.
    """
    from trispark.site import load_site

    chosen = load_site(repo / "inventory" / site, images="optional")
    if not chosen.image_signers:
        return None
    from trispark.images.demanded import outlook

    images: dict[str, str] = {}
    for plan in plans:
        for arm in ("baseline", "candidate"):
            images[f"engine of the {arm}"] = str((plan[arm] or {}).get("image"))
        images["load client"] = str(plan["bench_image"])
    found = {what: image for what, image in images.items() if "@sha256:" in image}
    return outlook(repo, chosen, found)


def plan_lines(plan: Mapping[str, Any]) -> Iterator[str]:
    """One plan for a person, without its refusals."""
    name = f"{plan['feature']}={plan['value']}" if plan["value"] is not None else plan["feature"]
    refused = " (refused, no trial is made of it)" if plan["refusals"] else ""
    yield f"plan {plan['id']}{refused}: stage {plan['stage']}, {f'{name}: ' if name else ''}{plan['title']}"
    yield f"  engine      {plan['engine']}, image: {plan['image']}"
    if plan["promoted"]:
        yield f"  promoted    by {plan['promoted']['record']}: {_settings(plan['promoted']['settings'])}"
    for arm in ("baseline", "candidate"):
        if plan[arm] is not None:
            image = plan[arm]["image"]
            own = "" if image == plan["image"] else f", image: {image or 'none of that name at this site'}"
            yield f"  {arm:<10}  {plan[arm]['generation'] or 'cannot be resolved'}{own}"
    for part in plan.get("confirms") or ():
        yield f"  confirms    {part['record']} ({part['feature']}): {', '.join(part['keys'])}"
    if plan["base"]:
        yield f"  both hold   {', '.join(plan['base'])}"
    if plan["overrides"]:
        yield f"  what-if     {_settings(plan['overrides'])}, in both arms"
    changes = [f"{key}: {old} -> {new}" for key, (old, new) in plan["difference"].items()]
    for number, line in enumerate(changes or ["none"]):
        yield f"  {'difference' if number == 0 else '':<10}  {line}"
    for number, boot in enumerate(plan["boots"]):
        counted = "counted" if boot["counted"] else "not counted, compares results" if boot["check"] else "not counted"
        yield f"  {'boots' if number == 0 else '':<10}  slot {boot['slot']}: {boot['arm']}, {counted}: {boot['why']}"
    hours = plan["hours"]
    restores = hours["boots"] > len(plan["boots"])
    if restores:
        yield f"  {'':<10}  then the baseline, not counted: it serves again"
    yield from _decision(plan["decision"])
    yield f"  cells       {', '.join(_cell(cell) for cell in plan['cells'])}"
    restored = ", the restored baseline among them" if restores else ""
    boots = f"{hours['boots']} boot{'' if hours['boots'] == 1 else 's'}"
    yield f"  hours       {hours['total']}: {boots} of {hours['per_boot_min']} min{restored}"
    yield from _evidence(plan["evidence"])
    yield from _budget(plan["budget"])
    yield from (f"  note        {note}" for note in plan["notes"])


def _decision(decision: Mapping[str, Any] | None) -> Iterator[str]:
    """The rules of the verdict, in a few lines; docs/statistics.md explains them."""
    if decision is None:
        return
    looks = [f"{look['boots']}+{look['boots']} boots at {100 * look['level']:g} %" for look in decision["looks"]]
    yield f"  decision    {', then '.join(looks) or 'none, too few boots'}; order {' '.join(decision['order'])}"
    for role in ("primaries", "guards"):
        if decision[role]:
            yield f"  decision    {role} {', '.join(_watched(each) for each in decision[role])}"
    for each in decision["mechanism"]:
        yield f"  decision    {each['metric']} must go {each['goes']}"


def _watched(each: Mapping[str, Any]) -> str:
    least = (
        f"at least {100 * max(each['minimum_effect'], each['floor'] or 0):.3g} % better, " if "floor" in each else ""
    )
    return f"{each['metric']} ({least}not {100 * each['margin']:g} % worse)"


def refusal_line(refusal: Mapping[str, str]) -> str:
    """One refusal as every error is shown."""
    return str(TrisparkError(**refusal))


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _cell(cell: Mapping[str, Any]) -> str:
    return f"{cell['cell']} ({cell['repetitions']} x {cell['max_tokens']} tokens)"


def _evidence(evidence: Mapping[str, Any]) -> Iterator[str]:
    """What each boot must and must not show; what all of them must, or must not, is said once."""
    for kind, text in (("must", "must show"), ("must_not", "must not show")):
        named = {arm: _by_ranks(kinds[kind]) for arm, kinds in evidence.items()}
        shared = set.intersection(*({(name, *ranks) for name, ranks in each.items()} for each in named.values()))
        several = len(named) > 1
        for arm, ids in (*named.items(), (EVERY, named["baseline"])):
            places: dict[str, list[str]] = {}
            for name, ranks in ids.items():
                if ((name, *ranks) in shared) is (arm == EVERY) or not several:
                    places.setdefault(_ranks(ranks, evidence["baseline"][kind]), []).append(name)
            if several or arm != EVERY:
                who = f"{arm} {text}" if (arm, kind) != (EVERY, "must_not") else "no boot may show"
                yield from (f"  evidence    {who} {', '.join(names)} on {at}" for at, names in places.items())


def _by_ranks(ids: Mapping[str, list[str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for rank, names in ids.items():
        for name in names:
            found.setdefault(name, []).append(rank)
    return dict(sorted(found.items()))


def _ranks(ranks: list[str], every: Mapping[str, Any]) -> str:
    return "all ranks" if len(ranks) == len(every) else f"rank {', '.join(ranks)}"


def _budget(budget: Mapping[str, Any] | None) -> Iterator[str]:
    if budget is None:
        return
    better = f", better: {budget['better_bundle']}" if budget["better_bundle"] else ""
    yield f"  budget      {budget['verdict']} by the memory model {budget['model']}{better}"
    for arm in ("baseline", "candidate"):
        if arm in budget:
            yield f"  budget      {arm}: {budget[arm]['verdict']}"
    tried = budget.get("candidate") or budget.get("baseline") or {"lines": []}
    yield from (f"              {line}" for line in tried["lines"])
