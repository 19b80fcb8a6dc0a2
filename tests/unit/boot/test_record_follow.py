"""A rollback is recorded whatever the chains look like; a boot that somebody chose is refused."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trispark.errors import TrisparkError
from trispark.record_chain import appends
from trispark.record_follow import ALWAYS_RECORDED, follow
from trispark.records import RecordCache, head_of

ROOT = Path(__file__).resolve().parents[3]


def chain(length: int, mark: str = "") -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for seq in range(1, length + 1):
        last = head_of(records[-1]) if records else None
        previous = {"seq": last["seq"], "hash": last["hash"]} if last else None
        records.append({"seq": seq, "id": f"r{seq}{mark}", "kind": "boot", "previous": previous})
    return records


def answer(records: list[dict[str, Any]]) -> dict[str, Any]:
    return {"record_head": head_of(records[-1]) if records else None, "record_chain": "ok" if records else "empty"}


@pytest.fixture
def cache(tmp_path: Path) -> RecordCache:
    found = RecordCache(tmp_path / "records")
    found.directory.mkdir()
    return found


def keep(cache: RecordCache, records: list[dict[str, Any]]) -> None:
    for record in records:
        (cache.directory / f"{record['seq']:06}-{record['id']}.json").write_text(json.dumps(record), encoding="utf-8")


def after(head: Any) -> dict[str, Any]:
    return {"seq": head["seq"] + 1, "id": "new", "previous": {"seq": head["seq"], "hash": head["hash"]}}


@pytest.mark.parametrize("purpose", ["serve", "trial", "restore", *ALWAYS_RECORDED])
def test_a_fork_of_a_node_ends_a_boot_and_is_named_by_a_rollback(cache: RecordCache, purpose: str) -> None:
    ours, other = chain(3), chain(3, "x")
    keep(cache, ours)
    statuses = {"spark0": answer(other), "spark1": answer(ours), "spark2": answer(ours[:2])}
    if purpose not in ALWAYS_RECORDED:
        with pytest.raises(TrisparkError, match="TS-RECORD-FORK"):
            follow(statuses, cache, purpose, change=True)
        return
    found = follow(statuses, cache, purpose, change=True)
    assert (found.head, found.aside) == (head_of(ours[-1]), None)
    plan = appends(statuses, found.heads, cache, after(found.head))
    assert {node: len(entries) for node, entries in plan.appends.items()} == {"spark0": 0, "spark1": 1, "spark2": 2}
    (warning,) = found.warnings(plan)
    assert "TS-RECORD-FORK" in warning
    assert "spark0" in warning


def test_copies_that_the_nodes_contradict_are_kept_aside_by_a_rollback_alone(cache: RecordCache) -> None:
    ours, other = chain(3), chain(4, "x")
    keep(cache, other)
    statuses = {"spark0": answer(ours), "spark1": answer(ours)}
    with pytest.raises(TrisparkError, match="TS-RECORD-FORK"):
        follow(statuses, cache, "serve", change=True)
    looked = follow(statuses, cache, "rollback", change=False)
    assert (looked.aside, len(cache.list())) == (None, 4)
    found = follow(statuses, cache, "rollback", change=True)
    assert found.aside is not None
    assert (found.head, cache.list(), found.aside.name) == (head_of(ours[-1]), [], "records-forked-4-r4x")
    assert "TS-RECORD-FORK" in found.faults[0]
    plan = appends(statuses, found.heads, cache, after(found.head))
    assert all(len(entries) == 1 for entries in plan.appends.values())


def test_copies_that_cannot_be_read_leave_no_rollback_unrecorded(cache: RecordCache) -> None:
    ours = chain(2)
    keep(cache, ours)
    (cache.directory / "000002-r2.json").write_text("{", encoding="utf-8")
    with pytest.raises(TrisparkError, match="TS-RECORD-READ"):
        follow({"spark0": answer(ours)}, cache, "serve", change=True)
    found = follow({"spark0": answer(ours)}, cache, "rollback", change=True)
    assert found.head == head_of(ours[-1])
    assert found.aside is not None
    assert found.aside.name == "records-unreadable"


class Agent:
    """Answers `record-list` and `record-show` of one node from its chain."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        self.records = records

    def __call__(self, command: str, in_data: bytes, **_how: Any) -> dict[str, Any]:
        request = json.loads(in_data)
        if "record-list" in command:
            said: dict[str, Any] = {"records": [head_of(record) for record in self.records]}
        else:
            (record,) = [record for record in self.records if record["id"] == request["id"]]
            said = {"record": record}
        return {"rc": 0, "stdout": json.dumps({"ok": True, **said}), "stderr": ""}


@pytest.fixture
def catch_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("catch_up_action", ROOT / "plugins/action/trispark_catch_up.py")
    assert spec is not None
    assert spec.loader is not None
    plugin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)
    monkeypatch.setattr(plugin.ActionBase, "run", lambda self, tmp, task_vars: {})
    monkeypatch.setattr("trispark.records.validate_record", lambda record: None)

    def of(node: str, chains: dict[str, list[dict[str, Any]]], **given: Any) -> dict[str, Any]:
        action = plugin.ActionModule.__new__(plugin.ActionModule)
        given = {"root": str(tmp_path), "site": "lab", "status": answer(chains[node]), **given}
        action._task = SimpleNamespace(args=given, check_mode=False, diff=False)
        action._low_level_execute_command = Agent(chains[node])
        return action.run(None, {"inventory_hostname": node})

    return of


def test_of_a_fork_a_rollback_copies_the_chain_that_leads_alone_and_another_boot_nothing(
    catch_up: Any, tmp_path: Path
) -> None:
    chains = {"spark0": chain(2, "x"), "spark1": chain(2), "spark2": chain(2), "spark3": chain(1)}
    statuses = {name: answer(records) for name, records in chains.items()}
    refused = catch_up("spark0", chains, statuses=statuses)
    assert (refused["failed"], refused["check_id"]) == (True, "TS-RECORD-FORK")
    assert catch_up("spark0", chains, statuses=statuses, set_aside=True)["added"] == 0
    assert catch_up("spark1", chains, statuses=statuses, set_aside=True)["added"] == 2
    cache = RecordCache(tmp_path / ".trispark/lab/records")
    assert [record["id"] for record in cache.list()] == ["r1", "r2"]


def test_without_the_others_all_that_a_node_has_is_copied(catch_up: Any) -> None:
    assert catch_up("spark0", {"spark0": chain(3)})["added"] == 3
