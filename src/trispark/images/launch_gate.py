"""The gate before a launch: what is staged on every node, compared with the plan and with one another.

It stands before the old engine is stopped. Its input are the nodes' answers to the agent's verb `parity`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from trispark.gate_result import GateResult
from trispark.images.parity import against, compare
from trispark_node.image_name import is_among

OtherImage = Literal["refuse", "clear"]
Answers = Mapping[str, Mapping[str, Any] | None]
MADE_ELSEWHERE: Final = ("other", "unknown")
RESTAGE: Final = "find out why, then ./trispark play site -e restage=true (of a candidate: play boot)"


@dataclass(frozen=True)
class Launch:
    """`clear_autotune`: every rank begins without tactics, because one of them has those of another image."""

    results: tuple[GateResult, ...]
    clear_autotune: bool


def judge_launch(
    resolved: Mapping[str, Any], answers: Answers, purpose: str, other_image: OtherImage = "refuse"
) -> Launch:
    """All checks on all ranks; a node without an answer fails each.

    `other_image`: what the site says of tactics that were made under another image (site_autotune_other_image). A
    rollback clears them whatever the site says: it must come to its end.
    """
    nodes = {int(entry["rank"]): str(entry["node"]) for entry in resolved["ranks"]}
    seen = {rank: answers.get(node) or {} for rank, node in sorted(nodes.items())}
    clear = other_image == "clear" or purpose == "rollback"
    elsewhere = any(_autotune(each).get("state") in MADE_ELSEWHERE for each in seen.values())
    results = [
        *_images(str(resolved["image"]), seen, nodes),
        *_adapters(dict(resolved["adapters"]), seen, nodes),
        *_tactics(seen, nodes, clear=clear),
    ]
    return Launch(tuple(results), clear and elsewhere)


def _images(reference: str, seen: Mapping[int, Mapping[str, Any]], nodes: Mapping[int, str]) -> list[GateResult]:
    """The planned reference is among those that the node's image has, and it is one image on all nodes.

    Ids are compared among nodes of one storage driver: a containerd store calls the same image by another hash.
    """
    images = {rank: each.get("image") or {} for rank, each in seen.items()}
    compared = compare(
        {
            rank: {f"image id with {each.get('storage_driver')}": str(images[rank]["id"])}
            for rank, each in seen.items()
            if images[rank].get("id")
        },
        nodes,
        lambda _path: False,
    )
    results = []
    for rank, image in images.items():
        digests = [str(each) for each in image.get("digests") or ()]
        odd = compared.words(rank, nodes[rank])
        ok = bool(image.get("id")) and is_among(reference, digests) and not odd
        shown = f"{', '.join(digests) or 'no digest'}; image id {image.get('id') or 'none'}"
        remedy = "remove that image from the node and bring it by digest: ./trispark play images"
        results.append(_result("launch.image", rank, ok, reference, f"{shown}; {odd}" if odd else shown, remedy))
    return results


def _adapters(
    planned: Mapping[str, str], seen: Mapping[int, Mapping[str, Any]], nodes: Mapping[int, str]
) -> list[GateResult]:
    """Every adapter as it lies on each disk, byte for byte what was planned, no file more and none less."""
    staged = {rank: (each.get("staged") or {}).get("listed") for rank, each in seen.items()}
    wrong = against(planned, {rank: each for rank, each in staged.items() if each is not None}, nodes)
    expected = f"{len(planned)} files as planned"
    return [
        _result(
            "launch.adapters",
            rank,
            staged[rank] is not None and rank not in wrong,
            expected,
            wrong.get(rank, expected if staged[rank] is not None else "the staged adapters were not read"),
            RESTAGE,
        )
        for rank in seen
    ]


def _tactics(seen: Mapping[int, Mapping[str, Any]], nodes: Mapping[int, str], *, clear: bool) -> list[GateResult]:
    """Tactics made under another image: refused, or let through because they will be cleared on every rank."""
    results = []
    for rank, each in seen.items():
        found = _autotune(each)
        elsewhere = found.get("state") in MADE_ELSEWHERE
        observed = "no tactics of another image"
        if elsewhere:
            made = found.get("made_under") or "an unknown image"
            does = "; they are cleared on every rank" if clear else ""
            observed = f"{nodes[rank]}: {found.get('files')} files made under {made}{does}"
        remedy = "remove them on all nodes, or set site_autotune_other_image: clear"
        expected = str(found.get("image") or "none")
        results.append(
            _result("launch.autotune", rank, bool(each) and (clear or not elsewhere), expected, observed, remedy)
        )
    return results


def _autotune(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    return answer.get("autotune") or {}


def _result(check_id: str, rank: int, ok: bool, expected: str, observed: str, remedy: str) -> GateResult:
    return GateResult(check_id, rank, ok, expected, observed, "" if ok else remedy)
