"""The way of the hashes of what runs: from the first observation through the gates into the record."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trispark.images.identity_record import compact
from trispark.record_model import RankIdentity
from trispark.resolve import Resolution
from trispark_node.errors import AgentError
from trispark_node.file_tree import hash_of
from trispark_node.spec import parse_spec

ROOT = Path(__file__).resolve().parents[3]
ROWS = {1: 200_001, 14: 200_005}
FILE = "/opt/engine/b.py"


@pytest.fixture(scope="module")
def plugin() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gates_plugin", ROOT / "plugins/action/trispark_gates.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def given(baseline: Resolution, healthy: Callable[..., Any], canary: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the gates' task after a healthy boot, as the role gives them."""
    seen = healthy(baseline)
    first = {node: {"ok": True, "identity": each.pop("identity")} for node, each in seen.items()}
    shards = {
        f"spark{rank}": {
            "files": [
                {"layer": layer, "first_row": rows * rank // 3, "end_row": rows * (rank + 1) // 3}
                for layer, rows in ROWS.items()
            ]
        }
        for rank in range(3)
    }
    return {
        "phase": "boot",
        "plan": {
            "resolved": baseline.resolved,
            "nodes": {f"spark{rank}": {"rank": rank} for rank in range(3)},
            "layers": [1, 14],
            "batch": {"requests": []},
            "quality": {"requests": []},
            "purpose": "serve",
            "boot_id": "b1",
        },
        "observations": seen,
        "identities": first,
        "listed": {},
        "before": {node: {"1": 0, "14": 0} for node in seen},
        "shards": shards,
        "canary": canary,
        "batch": {},
        "quality": {},
    }


def work(plugin: ModuleType, given: dict[str, Any]) -> dict[str, Any]:
    action = plugin.ActionModule.__new__(plugin.ActionModule)
    done: dict[str, Any] = action.work(given)
    return done


def test_equal_ranks_pass_and_hand_on_their_hashes(plugin: ModuleType, given: dict[str, Any]) -> None:
    done = work(plugin, given)
    assert "failed" not in done, done.get("msg")
    assert set(done["identities"]) == {"spark0", "spark1", "spark2"}
    for each in done["identities"].values():
        kept = RankIdentity.model_validate(each)
        assert kept.source is not None
        assert (kept.source.files, kept.differing) == (3, {})
    assert done["identities"]["spark1"]["autotune"].keys() == {"d06a/rank_tp1.json"}


def test_the_odd_file_fails_the_boot_by_its_name(plugin: ModuleType, given: dict[str, Any]) -> None:
    files = {f"/opt/engine/{name}.py": name * 64 for name in "abc"}
    for node, first in given["identities"].items():
        own = {**files, FILE: "d" * 64} if node == "spark2" else files
        first["identity"]["source"] = {"hash": hash_of(own), "files": 3, "bytes": 3}
        listed = copy.deepcopy(first["identity"])
        listed["source"]["listed"] = own
        given["listed"][node] = {"running": {"identity": listed}}
    done = work(plugin, given)
    assert (done["failed"], done["check_id"]) == (True, "identity.source")
    assert f"on rank 2: expected the same files on all ranks; observed the odd node spark2: {FILE} is" in done["msg"]
    assert "d" * 12 in done["msg"]
    assert "b" * 12 in done["msg"]
    assert done["identities"]["spark2"]["differing"] == {"source": {FILE: "d" * 64}}
    assert done["identities"]["spark0"]["differing"] == {"source": {FILE: "b" * 64}}


def test_without_hashes_nothing_passes(plugin: ModuleType, given: dict[str, Any]) -> None:
    done = work(plugin, {**given, "identities": {}})
    failed = {(gate["check_id"], gate["rank"]) for gate in done["gates"] if not gate["ok"]}
    assert failed == {(f"identity.{name}", rank) for name in ("source", "libraries") for rank in range(3)}


def test_a_generation_of_an_older_version_is_not_judged_by_them(
    plugin: ModuleType, given: dict[str, Any], baseline: Resolution
) -> None:
    """It does not say what to hash, and a rollback to it has to stay possible."""
    launch = {key: value for key, value in baseline.resolved["launch"].items() if key != "identity"}
    given["plan"]["resolved"] = {**baseline.resolved, "launch": launch}
    done = work(plugin, {**given, "identities": {}})
    assert not {gate["check_id"] for gate in done["gates"]} & {"identity.source", "identity.libraries"}


def test_what_the_gates_hand_on_fits_a_record(given: dict[str, Any]) -> None:
    identities = {node: each["identity"] for node, each in given["identities"].items()}
    for kept in compact(identities).values():
        assert RankIdentity.model_validate(kept).model_dump(mode="json") == kept


@pytest.mark.parametrize(
    ("identity", "where"),
    [
        ({"sources": ["engine"], "compiled": [], "autotune": None}, "spec.observe.identity.sources"),
        ({"sources": ["/a/../b"], "compiled": [], "autotune": None}, "spec.observe.identity.sources"),
        ({"sources": [], "compiled": ["x"], "autotune": None}, "spec.observe.identity.compiled"),
        ({"sources": [], "compiled": [], "autotune": "x"}, "spec.observe.identity.autotune"),
        ({"sources": [], "compiled": [], "autotune": None, "more": 1}, "spec.observe.identity"),
    ],
)
def test_a_spec_with_other_places_is_refused(baseline: Resolution, identity: dict[str, Any], where: str) -> None:
    spec = copy.deepcopy(baseline.specs["spark1"])
    assert parse_spec(spec).identity.autotune == "/state/autotune"
    spec["observe"]["identity"] = identity
    with pytest.raises(AgentError) as caught:
        parse_spec(spec)
    assert caught.value.where == where
