"""What must hold of a fleet after every step, from the nodes' files and containers, not from the agents' word."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from fleet_node import Fleet, FleetNode

from trispark_node import generations
from trispark_node.journal import DONE, INTENT, History


def engines(fleet: Fleet, *, only_up: bool = False) -> dict[str, Mapping[str, str]]:
    """{node: labels of the engine that runs there}; never two on one node."""
    found = {}
    for name, node in fleet.nodes.items():
        alive = node.running()
        assert len(alive) <= 1, f"{name} runs {len(alive)} engines"
        if alive and (node.up or not only_up):
            found[name] = alive[0]
    return found


def boots(labels: Iterable[Mapping[str, str]]) -> set[tuple[str, str, str]]:
    """(boot, generation, epoch) of engines."""
    return {(each["trispark.boot"], each["trispark.generation"], each["trispark.epoch"]) for each in labels}


def one_boot_an_epoch(fleet: Fleet) -> None:
    """Engines find each other by their epoch's port: those of one epoch are one boot of one generation."""
    found = boots(engines(fleet).values())
    epochs = [epoch for _boot, _generation, epoch in found]
    assert len(epochs) == len(set(epochs)), f"one epoch, several boots: {found}"


def current_is_whole(node: FleetNode) -> None:
    path = node.root / "current"
    if not path.is_symlink():
        assert not path.exists(), "current is no link"
        return
    generation = path.readlink().name
    found = generations.damage(node.node(), generation)
    assert found is None, f"{node.name}: current {generation}: {found}"


def way_back_is_there(node: FleetNode) -> None:
    """No prune takes the target of a rollback, nor the last good generation."""
    wanted = [state["rollback"]] if (state := files(node))["rollback"] else []
    wanted += state["good"][-1:]
    missing = [generation for generation in wanted if not (node.root / "generations" / generation).is_dir()]
    assert not missing, f"{node.name}: {missing} is gone"


def files(node: FleetNode) -> dict[str, Any]:
    """What the state's files say, read without the agent's own readers."""
    root = node.root

    def read(name: str) -> str:
        try:
            return (root / name).read_text()
        except FileNotFoundError:
            return ""

    link = root / "current"
    epoch, rollback, baseline = (
        json.loads(read(name) or "null") for name in ("epoch", "rollback.json", "baseline.json")
    )
    return {
        "current": link.readlink().name if link.is_symlink() else None,
        "epoch": (epoch["epoch"], epoch["boot_id"]) if epoch else (0, None),
        "good": [json.loads(line)["generation"] for line in read("good.jsonl").splitlines()],
        "rollback": rollback["target"] if rollback else None,
        "baseline": baseline["record"] if baseline else "shipped",
        "records": sorted(path.name.partition("-")[2].removesuffix(".json") for path in root.glob("records/0*.json")),
    }


def replayed(history: History) -> dict[str, Any]:
    """The state that the journal tells of: the done intents, in the order in which they were done."""
    state: dict[str, Any] = {
        "current": None, "epoch": (0, None), "good": [], "rollback": None, "baseline": "shipped", "records": [],
    }  # fmt: skip
    intents = {entry.seq: entry for entry in history.entries if entry.phase == INTENT}
    for entry in history.entries:
        if entry.phase != DONE:
            continue
        detail = intents[entry.detail["intent"]].detail
        if entry.verb == "activate":
            state["current"] = detail["to"]
        elif entry.verb == "fence":
            state["epoch"] = (detail["to"], detail["boot_id"])
        elif entry.verb == "rollback":
            state |= {"current": detail["to"], "epoch": (detail["epoch"], detail["boot_id"]), "rollback": detail["to"]}
        elif entry.verb == "rollback-clear":
            state["rollback"] = None
            if detail["epoch"]:
                state["epoch"] = (detail["epoch"], None)
        elif entry.verb == "good-mark":
            state["good"].append(detail["generation"])
        elif entry.verb == "baseline-set":
            state["baseline"] = detail["to"]
        elif entry.verb == "record-append":
            state["records"] = sorted([*state["records"], detail["id"]])
    return state


def journal_equals_state(node: FleetNode) -> None:
    """Where nothing is pending; what is under way may be either."""
    history = node.node().journal.read()
    assert not history.damaged_lines
    if history.pending():
        return
    told, found = replayed(history), files(node)
    assert told == found, f"{node.name}: the journal tells {told}, the files say {found}"


def chains_agree(fleet: Fleet) -> None:
    """The records of each node are the beginning of the longest chain, never another one."""
    names = [sorted(path.name for path in node.root.glob("records/0*.json")) for node in fleet.nodes.values()]
    longest = max(names, key=len)
    for each in names:
        assert each == longest[: len(each)], f"a chain is not that of the others: {names}"


def after_every_step(fleet: Fleet) -> None:
    one_boot_an_epoch(fleet)
    chains_agree(fleet)
    for node in fleet.nodes.values():
        current_is_whole(node)
        way_back_is_there(node)
        journal_equals_state(node)
