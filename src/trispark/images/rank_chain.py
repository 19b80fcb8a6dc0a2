"""The chain from the site's reference to what each rank has loaded: one answer for `./trispark images verify`.

Made of the nodes' answers to the agent's verb `parity`. A step is equal when all ranks have what they have to have; the
odd ranks are named with the files and both hashes where they were listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from trispark.images.attestation import Verifier
from trispark.images.chain import provenance_of
from trispark.images.demanded import provenance_directory
from trispark.images.parity import Compared, compare, differ, libraries, trees
from trispark.images.site_images import SiteImages, digest_of
from trispark_node.image_name import is_among

Answer = Mapping[str, Any]
NOTHING_RUNS: Final = "nothing runs"
STEPS: Final = (
    "reference",
    "image_name",
    "manifest_digest",
    "image_id",
    "container_image_id",
    "container_image_name",
    "adapters_staged",
    "adapters",
    "source",
    "libraries",
    "autotune",
)


OF_RUNNING: Final = frozenset(("container_image_id", "container_image_name", "adapters", "source", "libraries"))
"""Steps of which a fleet without an engine has nothing."""
OF_SITE: Final = frozenset(("image_name", "container_image_name"))
"""Steps that compare a rank with the site's files and not with the other ranks."""


@dataclass(frozen=True)
class Step:
    """One link of the chain. `values`: by node, None where there is nothing; `problems`: by node, in words. `equal` is
    None for what only a running engine has, while none runs."""

    step: str
    equal: bool | None
    values: Mapping[str, str | None]
    problems: Mapping[str, str]


@dataclass(frozen=True)
class Chain:
    """`running`: nodes on which an engine of ours runs. `unreachable`: nodes that gave no answer."""

    site: str
    images: SiteImages
    running: tuple[str, ...]
    unreachable: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def equal(self) -> bool:
        """Whether the ranks have the same, whatever the site's files say by now."""
        return not self.unreachable and all(step.equal is not False for step in self.steps if step.step not in OF_SITE)

    @property
    def of_site(self) -> bool:
        """Whether no rank has an image that the site's files do not name."""
        return all(step.equal is not False for step in self.steps if step.step in OF_SITE)


def make_chain(
    site: str,
    images: SiteImages,
    nodes: Mapping[int, str],
    answers: Mapping[str, Answer | None],
    same_set: Sequence[str],
    needed: Sequence[str] = (),
) -> Chain:
    """`images`: those of the site; `nodes`: {rank: node}; `answers`: {node: answer}."""
    seen = {rank: dict(answers[node] or {}) for rank, node in sorted(nodes.items()) if answers.get(node)}
    names = {rank: nodes[rank] for rank in seen}
    running = {rank: each["running"] for rank, each in seen.items() if each.get("running")}
    steps = [
        _reference(seen, names),
        _image_name(seen, names, images),
        _manifest(seen, names),
        _image_id(seen, names),
        _staged(seen, names),
        _autotune(seen, names),
    ]
    if running:
        steps += [
            _container_image(seen, names),
            _container_image_name(running, names, images),
            _adapters(seen, running, names),
            _source(running, names),
            _libraries(running, names, same_set, needed),
        ]
    else:
        steps += [Step(step, None, dict.fromkeys(names.values()), {}) for step in STEPS if step in OF_RUNNING]
    ordered = sorted(steps, key=lambda step: STEPS.index(step.step))
    unreachable = tuple(node for _, node in sorted(nodes.items()) if not answers.get(node))
    return Chain(site, images, tuple(names[rank] for rank in running), unreachable, tuple(ordered))


def wants_files(answers: Mapping[str, Answer | None]) -> bool:
    """Whether trees of two nodes differ, so that every file is asked for."""
    return differ({node: ((each or {}).get("running") or {}).get("identity") for node, each in answers.items()})


def _step(name: str, values: Mapping[int, str | None], names: Mapping[int, str], problems: Mapping[int, str]) -> Step:
    said = {names[rank]: text for rank, text in sorted(problems.items())}
    return Step(name, not said, {names[rank]: values.get(rank) for rank in names}, said)


def _agreed(name: str, values: Mapping[int, str | None], names: Mapping[int, str], what: str) -> Step:
    """One value on all ranks, none missing."""
    compared = compare({rank: {what: value} if value else {} for rank, value in values.items()}, names)
    problems = {rank: compared.words(rank, names[rank]) for rank in compared.odd}
    problems.update({rank: f"{what} is not there" for rank, value in values.items() if value is None})
    return _step(name, values, names, problems)


def _image(answer: Answer) -> Mapping[str, Any]:
    return answer.get("image") or {}


def _reference(seen: Mapping[int, Answer], names: Mapping[int, str]) -> Step:
    return _agreed(
        "reference", {rank: _image(each).get("reference") for rank, each in seen.items()}, names, "the reference"
    )


def _image_name(seen: Mapping[int, Answer], names: Mapping[int, str], images: SiteImages) -> Step:
    """Which image of the site the current generation is to run. A generation that is not there is no odd name."""
    found = {rank: [str(reference)] for rank, each in seen.items() if (reference := _image(each).get("reference"))}
    return _named("image_name", found, names, images, "it is to run")


def _container_image_name(running: Mapping[int, Answer], names: Mapping[int, str], images: SiteImages) -> Step:
    """Which image of the site runs; of one that was started by a tag, by the digests that the node knows it under."""
    found = {}
    for rank, each in running.items():
        reference = str(each.get("image_ref") or each.get("image_id"))
        found[rank] = [reference] if digest_of(reference) else [reference, *map(str, each.get("image_digests") or ())]
    return _named("container_image_name", found, names, images, "it runs")


def _named(
    step: str, references: Mapping[int, Sequence[str]], names: Mapping[int, str], images: SiteImages, does: str
) -> Step:
    values = {rank: images.name_of(each) for rank, each in references.items()}
    problems = {rank: f"{does} {images.refused(references[rank][0])}" for rank, name in values.items() if name is None}
    return _step(step, values, names, problems)


def _manifest(seen: Mapping[int, Answer], names: Mapping[int, str]) -> Step:
    values: dict[int, str | None] = {}
    problems = {}
    for rank, each in seen.items():
        reference, digests = str(_image(each).get("reference")), list(_image(each).get("digests") or ())
        values[rank] = reference.partition("@")[2] if is_among(reference, digests) else None
        if values[rank] is None:
            problems[rank] = f"the image on this node is {', '.join(digests) or 'not there by any digest'}"
    return _step("manifest_digest", values, names, problems)


def _image_id(seen: Mapping[int, Answer], names: Mapping[int, str]) -> Step:
    """Among nodes of one storage driver: a containerd store has another hash for the same image."""
    values = {rank: _image(each).get("id") for rank, each in seen.items()}
    compared = compare(
        {
            rank: {f"image id with {each.get('storage_driver')}": str(values[rank])}
            for rank, each in seen.items()
            if values[rank]
        },
        names,
        lambda _path: False,
    )
    problems = {rank: compared.words(rank, names[rank]) for rank in compared.odd}
    problems.update({rank: "the image is not on this node" for rank, value in values.items() if not value})
    return _step("image_id", values, names, problems)


def _container_image(seen: Mapping[int, Answer], names: Mapping[int, str]) -> Step:
    """The container runs the image of the generation that is current on its node."""
    values: dict[int, str | None] = {}
    problems = {}
    for rank, each in seen.items():
        running = each.get("running") or {}
        values[rank] = running.get("image_id")
        if not running:
            problems[rank] = NOTHING_RUNS
        elif running.get("generation") != each.get("generation"):
            problems[rank] = f"it runs generation {running.get('generation')}, {each.get('generation')} is current"
        elif values[rank] != _image(each).get("id"):
            problems[rank] = f"it runs image {values[rank]}, on the node is {_image(each).get('id')}"
    return _step("container_image_id", values, names, problems)


def _listed(answer: Answer, name: str) -> Mapping[str, str]:
    return dict((answer.get(name) or {}).get("listed") or {})


def _staged(seen: Mapping[int, Answer], names: Mapping[int, str]) -> Step:
    compared = compare({rank: _listed(each, "staged") for rank, each in seen.items()}, names)
    values = {rank: (each.get("staged") or {}).get("hash") for rank, each in seen.items()}
    problems = _odd(compared, names)
    # Equal on all ranks is not enough: the same edit on every node is no plan's.
    damaged = {rank: str(each["damage"]) for rank, each in seen.items() if each.get("damage")}
    problems |= {rank: f"not as planned: {text}" for rank, text in damaged.items() if rank not in problems}
    problems.update({rank: "no generation is staged" for rank, value in values.items() if not value})
    return _step("adapters_staged", values, names, problems)


def _odd(compared: Compared, names: Mapping[int, str]) -> dict[int, str]:
    return {rank: compared.words(rank, names[rank]) for rank in compared.odd}


def _identities(running: Mapping[int, Answer], names: Mapping[int, str]) -> dict[int, Mapping[str, Any]]:
    return {rank: (running.get(rank) or {}).get("identity") or {} for rank in names}


def _adapters(seen: Mapping[int, Answer], running: Mapping[int, Answer], names: Mapping[int, str]) -> Step:
    """As the engine sees them: equal on all ranks, and what is staged on its node."""
    check = trees("adapters", _identities(running, names), names)
    problems = dict(check.problems)
    for rank, value in check.hashes.items():
        staged = (seen[rank].get("staged") or {}).get("hash")
        if value is not None and value != staged and rank not in problems:
            problems[rank] = f"the container has {value[:12]}, {str(staged)[:12]} is staged"
    return _step("adapters", check.hashes, names, problems)


def _source(running: Mapping[int, Answer], names: Mapping[int, str]) -> Step:
    check = trees("source", _identities(running, names), names)
    return _step("source", check.hashes, names, check.problems)


def _libraries(
    running: Mapping[int, Answer], names: Mapping[int, str], same_set: Sequence[str], needed: Sequence[str]
) -> Step:
    """The value is the number of libraries: ranks need not load the same ones."""
    identities = _identities(running, names)
    compared, problems = libraries(identities, names, same_set, needed)
    counts = {rank: (each.get("libraries") or {}).get("files") for rank, each in identities.items()}
    values = {rank: None if count is None else f"{count} loaded" for rank, count in counts.items()}
    return _step("libraries", values, names, {**_odd(compared, names), **problems})


def _autotune(seen: Mapping[int, Answer], names: Mapping[int, str]) -> Step:
    found = {rank: each.get("autotune") or {} for rank, each in seen.items()}
    values = {rank: each.get("state") for rank, each in found.items()}
    problems = {
        rank: f"{each['files']} files made under {each.get('made_under') or 'an unknown image'}"
        for rank, each in found.items()
        if each.get("state") in ("other", "unknown")
    }
    return _step("autotune", values, names, problems)


def published(chain: Chain, root: Path, verifier: Verifier | None = None) -> dict[str, Any]:
    """The JSON form: {"site", "equal", "of_site", "running", "unreachable", "image": {"reference", "demanded",
    "provenance"}, "steps", "ranks": [{"node", step: value}]}; the odd ranks with their problems are in the steps.
    `verifier`: by whom the site judges signatures, None where it demands none."""
    reference = chain.images.engine
    nodes = sorted({node for step in chain.steps for node in step.values})
    return {
        "site": chain.site,
        "equal": chain.equal,
        "of_site": chain.of_site,
        "running": list(chain.running),
        "unreachable": list(chain.unreachable),
        "image": {
            "reference": reference,
            "demanded": verifier is not None,
            "provenance": _provenance(root, reference, verifier),
        },
        "steps": [{**asdict(step), "odd": sorted(step.problems)} for step in chain.steps],
        "ranks": [{"node": node, **{step.step: step.values.get(node) for step in chain.steps}} for node in nodes],
    }


def _provenance(root: Path, reference: str | None, verifier: Verifier | None) -> Mapping[str, Any] | None:
    """What is kept of how the site's image was made and who signed that, or why that cannot be shown."""
    return None if reference is None else provenance_of(provenance_directory(root), reference, verifier)
