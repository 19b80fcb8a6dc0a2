"""Judges what the nodes say of themselves before anything is changed. Read-only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trispark.errors import TrisparkError
from trispark.site import LAB, Site

Answers = Mapping[str, Mapping[str, Any]]


def check_nodes(
    site: Site, hosts: Answers, statuses: Answers, minimum_free_bytes: int, minimum_memory_bytes: int
) -> None:
    """Raises the first TS-PREFLIGHT-* (nodes in rank order). `hosts`, `statuses`: {node: the agent's answer}."""
    require_nodes(site, hosts)
    require_nodes(site, statuses)
    for node in site.nodes:
        host, status = hosts[node.name], statuses[node.name]
        addresses = {address for group in host["addresses"].values() for address in group}
        for wanted in [node.address, *(link.local for link in node.pair_links)]:
            if wanted not in addresses:
                raise TrisparkError(
                    "TS-PREFLIGHT-ADDRESS",
                    "the node does not have an address that the inventory gives it",
                    where=node.name,
                    expected=wanted,
                    observed=", ".join(sorted(addresses)),
                    remedy="check the cables and the node's network set-up, or the inventory",
                )
        for path, disk in sorted(host["disk"].items()):
            if disk["free_bytes"] < minimum_free_bytes:
                raise TrisparkError(
                    "TS-PREFLIGHT-DISK",
                    "too little free space",
                    where=f"{node.name} {path}",
                    expected=f"{minimum_free_bytes} bytes",
                    observed=f"{disk['free_bytes']} bytes",
                    remedy="free space on that file system",
                )
        if host["memory_available_bytes"] < minimum_memory_bytes:
            raise TrisparkError(
                "TS-PREFLIGHT-MEMORY",
                "too little memory available",
                where=node.name,
                expected=f"{minimum_memory_bytes} bytes",
                observed=f"{host['memory_available_bytes']} bytes",
                remedy="stop what else uses memory on that node",
            )
        refuse_damage(node.name, status)
        if status["foreign"]:
            raise TrisparkError(
                "TS-PREFLIGHT-FOREIGN",
                "a container of someone else stands in our place",
                where=node.name,
                expected="no container named trispark-engine without our label",
                observed=", ".join(status["foreign"]),
                remedy="its owner removes or renames it, or takes an engine over: ./trispark play adopt",
            )


def require_nodes(site: Site, answers: Mapping[str, Any]) -> None:
    """Raises TS-PREFLIGHT-NODE for the first rank whose node gave no answer (absent or None)."""
    for node in site.nodes:
        if not answers.get(node.name):
            answered = [name for name, answer in sorted(answers.items()) if answer]
            raise TrisparkError(
                "TS-PREFLIGHT-NODE",
                "a node did not answer, nothing was touched",
                where=node.name,
                expected="all ranks, a serving group needs each of them",
                observed=f"answers from {', '.join(answered) or 'no node'}",
                remedy="./trispark lab up, then run the verb again"
                if site.name == LAB
                else "bring the node back, then run the verb again",
            )


def refuse_damage(node: str, status: Mapping[str, Any]) -> None:
    """Raises TS-PREFLIGHT-STATE when the agent says that something of its own state cannot be read.

    A boot on such a node would end without its record, so it is refused before anything is touched.
    """
    problems = status.get("problems") or []
    if problems:
        raise TrisparkError(
            "TS-PREFLIGHT-STATE",
            "the node's own state is damaged",
            where=node,
            expected="no problem",
            observed="; ".join(str(problem) for problem in problems),
            remedy="mend what is named on the node; a rollback is still possible",
        )
