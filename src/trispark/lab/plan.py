"""What the playbooks ask: a plan for `up`, the check after it, a plan for `down`. Nothing here changes the lab.

A plan takes the lease of the lab for the playbook run that asks, because that run goes on to carry the plan out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from trispark.errors import TrisparkError
from trispark.host import state_directory
from trispark.lab.desired import Desired, desired_lab
from trispark.lab.engine_api import EngineApi, image_exists
from trispark.lab.layout import (
    LABEL_CONTENT,
    LABEL_IMAGE,
    LABEL_ROOT,
    NODE_REGISTRY,
    REGISTRY_CONTAINER,
    Layout,
    Paths,
    load_layout,
    root_id,
)
from trispark.lab.lease import take_lease
from trispark.lab.observe import busy_ports, observe, wait_ready
from trispark.lab.prepared import BUILD_ORDER, Prepared, load_prepared
from trispark.lab.registry import digest_of, split_reference
from trispark.lab.state import Assessment, Observed, assess, assess_removal

SITE_KEYS: Final = {"lab-engine": "site_engine_image", "bench": "site_bench_image"}
"""Pushed image -> key in images.yml."""
ENGINE_IMAGES: Final = {"lab-engine-canary": "canary"}
"""Pushed image -> its name in site_engine_images of images.yml."""

GRACE_S: Final = 15.0
"""A node that an interrupted `up` started a moment ago may still be starting."""

Digest = Callable[[str], str]


def up_plan(repo: Path, client: EngineApi, digest: Digest = digest_of) -> dict[str, Any]:
    """Everything that `lab up` has to do; `complete` means nothing. Raises the first refusal."""
    paths = Paths(repo.resolve())
    _hold(paths)
    layout, prepared = load_layout(paths.repo), load_prepared(paths.prepared)
    desired = desired_lab(paths, layout, prepared)
    observed = observe(client, frozenset(each.name for each in desired.containers))
    assessment = assess(desired, observed)
    _raise_first(assessment)
    running = _running(observed, desired)
    busy = busy_ports(desired, assessment.create_containers, running)
    if busy:
        raise busy[0]
    assessment = _with_dead_nodes(client, layout, assessment)
    references = _references(prepared, digest)
    builds = [
        {
            "name": image.reference.rpartition(":")[0],
            "tag": image.reference.rpartition(":")[2],
            "context": image.context,
            "base": image.base,
            "labels": {LABEL_IMAGE: "1", LABEL_ROOT: desired.root, LABEL_CONTENT: image.content},
        }
        for image in (prepared.images[name] for name in BUILD_ORDER)
        if not image_exists(client, image.reference)
    ]
    complete = (
        assessment.complete
        and not builds
        and all(references.values())
        and _images_current(paths.images_yml, references)
    )
    return {
        "complete": complete,
        "remove_containers": list(assessment.remove_containers),
        "remove_networks": list(assessment.remove_networks),
        "remove_volumes": list(assessment.remove_volumes),
        "networks": [{"name": name, "subnet": desired.networks[name]} for name in assessment.create_networks],
        "containers": [
            desired.options(each) for each in desired.containers if each.name in assessment.create_containers
        ],
        "builds": builds,
        "pushes": [name for name, reference in references.items() if not reference],
        "labels": desired.labels,
        "reasons": assessment.reasons,
        "abandoned": list(assessment.abandoned),
        "agent": prepared.agent,
        "agent_sha256": prepared.agent_sha256,
    }


def up_check(repo: Path, client: EngineApi, deadline_s: float, digest: Digest = digest_of) -> dict[str, Any]:
    """After the work: waits for the nodes, checks that nothing is left to do, gives images.yml and what is stale."""
    paths = Paths(repo.resolve())
    layout, prepared = load_layout(paths.repo), load_prepared(paths.prepared)
    engines = wait_ready(client, tuple(node.name for node in layout.nodes), deadline_s)
    desired = desired_lab(paths, layout, prepared)
    assessment = assess(desired, observe(client, frozenset(each.name for each in desired.containers)))
    _raise_first(assessment)
    if not assessment.complete:
        raise TrisparkError(
            "TS-LAB-INCOMPLETE",
            "the lab is not what it should be after it was made",
            where=", ".join((*assessment.reasons, *assessment.create_containers, *assessment.create_networks)),
            expected="containers and networks as the lab's layout says",
            observed="; ".join(f"{name}: {why}" for name, why in assessment.reasons.items()),
            remedy="./trispark lab up again; it repairs",
        )
    references = _references(prepared, digest)
    missing = [name for name, reference in references.items() if not reference]
    if missing:
        raise TrisparkError(
            "TS-LAB-REGISTRY",
            "the lab's registry has no such image",
            where=", ".join(prepared.images[name].reference for name in missing),
            expected="a digest for the tag",
            observed="no digest",
            remedy=f"docker logs {REGISTRY_CONTAINER}; then ./trispark lab up again",
        )
    return {
        "engines": engines,
        "images_yml": render_images_yml(references),
        "stale_images": _stale_images(client, root_id(paths.repo), prepared),
        "stale_checkpoints": [
            str(each) for each in sorted(paths.cache.glob("checkpoint-*")) if str(each) != prepared.checkpoint
        ],
    }


def down_plan(repo: Path, client: EngineApi) -> dict[str, Any]:
    """What `lab down` removes; `images` are those that a purge removes too."""
    _hold(Paths(repo.resolve()))
    root = root_id(repo.resolve())
    assessment = assess_removal(root, observe(client, frozenset()))
    _raise_first(assessment)
    return {
        "remove_containers": list(assessment.remove_containers),
        "remove_networks": list(assessment.remove_networks),
        "remove_volumes": list(assessment.remove_volumes),
        "images": _labelled_images(client, root),
    }


def render_images_yml(references: dict[str, str]) -> str:
    """Text of inventory/lab/group_vars/all/images.yml."""
    lines = ["# Written by playbooks/lab_up.yml from the digests in the lab's registry; git-ignored."]
    lines += [f"{SITE_KEYS[name]}: {references[name]}" for name in sorted(SITE_KEYS, reverse=True)]
    lines += ["site_engine_images:", *(f"  {name}: {references[image]}" for image, name in ENGINE_IMAGES.items())]
    return "\n".join(lines) + "\n"


def _references(prepared: Prepared, digest: Digest) -> dict[str, str]:
    """Pushed image -> `registry:5000/repository@sha256:...`, empty when the registry has it not."""
    found = {}
    for name, image in prepared.images.items():
        if image.pushed:
            _, repository, _ = split_reference(image.reference)
            value = digest(image.reference)
            found[name] = f"{NODE_REGISTRY}/{repository}@{value}" if value else ""
    return found


def _images_current(path: Path, references: dict[str, str]) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == render_images_yml(references)


def _running(observed: Observed, desired: Desired) -> frozenset[str]:
    """Names of our containers that run, and so hold their ports."""
    return frozenset(
        str(each["Name"]).lstrip("/")
        for each in observed.containers
        if each["State"]["Status"] == "running" and (each["Config"].get("Labels") or {}).get(LABEL_ROOT) == desired.root
    )


def _with_dead_nodes(client: EngineApi, layout: Layout, assessment: Assessment) -> Assessment:
    """Add the nodes that run but whose sshd or engine does not answer within GRACE_S to what is made anew."""
    kept = [node.name for node in layout.nodes if node.name not in assessment.create_containers]
    while kept:
        try:
            wait_ready(client, tuple(kept), GRACE_S)
            break
        except TrisparkError as error:
            kept.remove(error.where)
            assessment = replace(
                assessment,
                remove_containers=(*assessment.remove_containers, error.where),
                create_containers=(*assessment.create_containers, error.where),
                reasons={**assessment.reasons, error.where: "its sshd or its engine does not answer"},
            )
    return assessment


def _labelled_images(client: EngineApi, root: str) -> list[str]:
    """Names (or ids, where there is none) of the images that this checkout made."""
    found = client.images(filters={"label": [f"{LABEL_IMAGE}=1", f"{LABEL_ROOT}={root}"]})
    return sorted({name for image in found for name in (_tags(image) or [str(image["Id"])])})


def _tags(image: dict[str, Any]) -> list[str]:
    return [tag for tag in image.get("RepoTags") or [] if tag != "<none>:<none>"]


def _stale_images(client: EngineApi, root: str, prepared: Prepared) -> list[str]:
    """Tagged images of this checkout that the present sources no longer use."""
    used = {image.reference for image in prepared.images.values()} | set(prepared.bases.values())
    return [name for name in _labelled_images(client, root) if not name.startswith("sha256:") and name not in used]


def _hold(paths: Paths) -> None:
    """Take the lab for the playbook run that asks; also where no verb of the command line has made `.trispark`."""
    state_directory(paths.repo)
    take_lease(paths.lease)


def _raise_first(assessment: Assessment) -> None:
    if assessment.refusals:
        raise assessment.refusals[0]
