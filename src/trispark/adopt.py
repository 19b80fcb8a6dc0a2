"""Take-over of an engine that someone started by hand: what the nodes say of it, and what is to be done."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from trispark.allowlist import Allowlist
from trispark.canonical import canonical_sha256
from trispark.errors import TrisparkError
from trispark.site import Site

SURVEY: Final = "survey"
TAKE: Final = "take"
BACK: Final = "back"
ADOPTION: Final = re.compile(r"a[0-9a-f]{16}")
CONTAINER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")

Surveys = Mapping[str, Mapping[str, Any]]
"""The agent's answers to `survey` by node."""


@dataclass(frozen=True)
class AdoptPlan:
    """`requests`: of the agent's verb `adopt` or `adopt-back`, by node, without those of nodes that have no part in it;
    `id` is empty when nothing is to be done. `lines` say for a person what was found."""

    mode: str
    id: str
    requests: dict[str, dict[str, Any]]
    lines: tuple[str, ...]
    found: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "id": self.id,
            "requests": self.requests,
            "lines": list(self.lines),
            "found": self.found,
        }


def container_names(text: str) -> tuple[str, ...]:
    """Of `-e container=dsv41-head,dsv41-worker`: on each node the one that is there. Raises TS-ADOPT-CONTAINER."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if CONTAINER.fullmatch(name) is None:
            raise TrisparkError(
                "TS-ADOPT-CONTAINER",
                "this is no container's name",
                where="-e container",
                expected="names with commas between them, such as dsv41-head,dsv41-worker",
                observed=name,
                remedy="see docker ps on the nodes",
            )
    return names


def loggable_names(allowlist: Allowlist) -> list[str]:
    """Variables whose value a description may hold."""
    return sorted(variable.name for variable in allowlist.variables() if variable.loggable)


def plan_adopt(
    site: Site,
    surveys: Surveys,
    *,
    container: str = "",
    back_to: str = "",
    confirm: bool = False,
    remove: bool = False,
    loggable: Sequence[str] = (),
    now: datetime | None = None,
) -> AdoptPlan:
    """What to do, from what every node says. Nothing is done without `confirm` or `back_to`."""
    names = container_names(container)
    for node in site.nodes:
        if node.name not in surveys:
            raise TrisparkError(
                "TS-ADOPT-NODE",
                "a node did not answer, nothing was touched",
                where=node.name,
                expected="all ranks, an engine needs each of them",
                observed=f"answers from {', '.join(sorted(surveys)) or 'no node'}",
                remedy="bring the node back, then run the verb again",
            )
    if back_to:
        return _plan_back(site, surveys, back_to, names, confirm)
    chosen, resumed = _choose(site, surveys, names) if names else ({}, "")
    if confirm and not names:
        raise TrisparkError(
            "TS-ADOPT-CONTAINER",
            "what is to be taken over is named",
            where="-e confirm=true",
            expected="-e container=NAME as well",
            observed="no name",
            remedy="look first: ./trispark play adopt lists what is there",
        )
    adoption = resumed or (_identity(site, chosen) if chosen else "")
    lines = _survey_lines(site, surveys, now or datetime.now(UTC))
    lines += _warnings(site, surveys)
    found = {node.name: _published(surveys[node.name]) for node in site.nodes}
    if not confirm:
        if adoption:
            lines.append(f"nothing was touched; -e confirm=true takes it over as {adoption}")
        return AdoptPlan(SURVEY, "", {}, tuple(lines), found)
    requests = {
        node.name: {
            "id": adoption,
            "container_id": chosen[node.name]["container_id"],
            "rank": node.rank,
            "deadline_s": site.stop_deadline_s,
            "remove": remove,
            "loggable": list(loggable),
        }
        for node in site.nodes
        if node.name in chosen
    }
    lines.append(f"the way back: ./trispark play adopt -e back_to={adoption}")
    return AdoptPlan(TAKE, adoption, requests, tuple(lines), found)


def _choose(site: Site, surveys: Surveys, names: Sequence[str]) -> tuple[dict[str, dict[str, Any]], str]:
    """({node: its container, or the earlier take-over of it}, the take-over that is gone on with or "")."""
    chosen: dict[str, dict[str, Any]] = {}
    earlier: dict[str, str] = {}
    for node in site.nodes:
        there = [dict(found) for found in surveys[node.name]["containers"] if found["name"] in names]
        taken = [
            dict(kept)
            for kept in surveys[node.name]["taken"]
            if kept["name"] in names
            and kept["phase"] != "returned"
            and not any(found["container_id"] != kept["container_id"] for found in there)
        ]
        if len(there) > 1:
            raise TrisparkError(
                "TS-ADOPT-AMBIGUOUS",
                "several containers on one node have the names given",
                where=node.name,
                expected="one of them",
                observed=", ".join(str(found["name"]) for found in there),
                remedy="name one for each node",
            )
        if taken:
            chosen[node.name] = taken[-1]
            earlier[node.name] = str(taken[-1]["id"])
        elif there:
            _refuse_other_rank(node.name, node.rank, there[0])
            chosen[node.name] = there[0]
    if not chosen:
        raise TrisparkError(
            "TS-ADOPT-NONE",
            "no node has such a container",
            where="all nodes",
            expected=" or ".join(names),
            observed="; ".join(
                f"{node.name}: {', '.join(surveys[node.name]['others']) or 'no other container'}" for node in site.nodes
            ),
            remedy="look first: ./trispark play adopt lists what is there",
        )
    if len(set(earlier.values())) > 1:
        raise TrisparkError(
            "TS-ADOPT-MIXED",
            "the nodes hold different take-overs of these names",
            where=", ".join(sorted(earlier)),
            expected="one take-over",
            observed=", ".join(f"{name}: {adoption}" for name, adoption in sorted(earlier.items())),
            remedy="go back from them first: ./trispark play adopt -e back_to=ID",
        )
    return chosen, next(iter(earlier.values()), "")


def _refuse_other_rank(node: str, rank: int, found: Mapping[str, Any]) -> None:
    if found["rank"] is None:
        raise TrisparkError(
            "TS-ADOPT-NOENGINE",
            "this container is no rank of an engine; it is left alone",
            where=f"{node}, container {found['name']}",
            expected="NODE_RANK in its environment or --node-rank in its command",
            observed="neither",
            remedy="name the engine's container; what else runs here, such as a file server, is its owner's to stop",
        )
    if found["rank"] != rank:
        raise TrisparkError(
            "TS-ADOPT-RANK",
            "this container is another rank than its node",
            where=f"{node}, container {found['name']}",
            expected=f"rank {rank}, as inventory/ says",
            observed=f"rank {found['rank']} in its {found['rank_from']}",
            remedy="correct node_rank in the site's hosts.yml, or name another container",
        )


def _identity(site: Site, chosen: Mapping[str, Mapping[str, Any]]) -> str:
    """Of these very containers since their last start: gone back from and taken over again is another take-over."""
    parts = {name: [found["container_id"], found["started_at"]] for name, found in chosen.items()}
    return f"a{canonical_sha256({'site': site.name, 'containers': parts})[:16]}"


def _survey_lines(site: Site, surveys: Surveys, now: datetime) -> list[str]:
    lines: list[str] = []
    for node in site.nodes:
        answer = surveys[node.name]
        for found in answer["containers"]:
            lines += _container_lines(node.name, found, now)
        for kept in answer["taken"]:
            lines.append(
                f"{node.name}: take-over {kept['id']} of {kept['name']} at {kept['time']}: {kept['phase']}, "
                f"container {kept['container']}"
            )
        if answer["others"]:
            lines.append(f"{node.name}: not looked at: {', '.join(answer['others'])}")
    return lines or ["no container of someone else on any node"]


def _container_lines(node: str, found: Mapping[str, Any], now: datetime) -> list[str]:
    image = found["image"]
    rank = "no rank" if found["rank"] is None else f"rank {found['rank']} ({found['rank_from']})"
    digest = image["digests"][0] if image["digests"] else f"no digest, id {image['id']}"
    mounts = [
        f"{mount['source']} -> {mount['target']}{' ro' if mount['read_only'] else ''}" for mount in found["mounts"]
    ]
    hidden = [name for name, value in found["env"].items() if value is None]
    shown = [f"{name}={value}" for name, value in found["env"].items() if value is not None]
    policy = found["options"].get("RestartPolicy", {}).get("Name") or "no"
    lines = [
        f"{node}: container {found['name']}, {rank}, {found['state']}{_uptime(found, now)}",
        f"  image {image['ref']} ({digest})",
        f"  command {' '.join(found['command'])}",
        f"  mounts {'; '.join(mounts) or 'none'}",
        f"  variables {' '.join(shown) or 'none whose value may be shown'}",
        f"  variables whose value is not shown: {', '.join(hidden) or 'none'}",
        f"  restart policy {policy}",
    ]
    project = found["labels"].get("com.docker.compose.project")
    if project:
        lines.append(f"  of the compose project {project}: whoever runs that again starts it again")
    if found["options"].get("AutoRemove"):
        lines.append("  started with --rm: it is removed when it ends, so a take-over wants -e remove=true, too")
    if found["inexact"]:
        lines.append(f"  made anew it would lack {'; '.join(found['inexact'])}: it is kept, not removed")
    return lines


def _uptime(found: Mapping[str, Any], now: datetime) -> str:
    if found["state"] != "running" or not found["started_at"]:
        return ""
    try:
        started = datetime.strptime(str(found["started_at"])[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return ""
    minutes = max(0, int((now - started).total_seconds() // 60))
    return f" for {minutes // 60} h {minutes % 60} min"


def _warnings(site: Site, surveys: Surveys) -> list[str]:
    """What makes ranks of one engine differ, by the field's experience (field 5.2, I9 and I11)."""
    images: dict[str, list[str]] = {}
    for node in site.nodes:
        for found in surveys[node.name]["containers"]:
            if found["rank"] is not None:
                images.setdefault(str(found["image"]["id"]), []).append(node.name)
    if len(images) < 2:
        return []
    shown = "; ".join(f"{identity[:19]} on {', '.join(nodes)}" for identity, nodes in sorted(images.items()))
    return [f"the ranks run different images: {shown}"]


def _published(survey: Mapping[str, Any]) -> dict[str, Any]:
    return {key: survey[key] for key in ("containers", "others", "taken")}


def _plan_back(site: Site, surveys: Surveys, back_to: str, names: Sequence[str], confirm: bool) -> AdoptPlan:
    if names or confirm:
        raise TrisparkError(
            "TS-ADOPT-CONTAINER",
            "a take-over and the way back from one are two runs",
            where="-e back_to",
            expected="back_to alone",
            observed="container or confirm as well",
            remedy="leave one of them out",
        )
    holders = {
        node.name: kept
        for node in site.nodes
        for kept in surveys[node.name]["taken"]
        if kept["id"] == back_to and ADOPTION.fullmatch(back_to)
    }
    if not holders:
        known = sorted({str(kept["id"]) for node in site.nodes for kept in surveys[node.name]["taken"]})
        raise TrisparkError(
            "TS-ADOPT-UNKNOWN",
            "no node holds such a take-over",
            where="all nodes",
            expected=", ".join(known) or "one that was made here, there is none",
            observed=back_to,
            remedy="./trispark play adopt shows them",
        )
    lines = [
        f"{name}: {kept['name']} of {kept['time']}, container {kept['container']}: "
        + ("made anew from its start description" if kept["container"] == "removed" else "started again")
        for name, kept in holders.items()
    ]
    requests = {name: {"id": back_to} for name in holders}
    found = {node.name: _published(surveys[node.name]) for node in site.nodes}
    return AdoptPlan(BACK, back_to, requests, tuple(lines), found)
