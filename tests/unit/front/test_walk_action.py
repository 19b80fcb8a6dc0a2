"""The action that walks the boots hands on what the trial was planned with."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trispark.walk import WalkEnd
from trispark.walk_run import Walk

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def plugin() -> Any:
    spec = importlib.util.spec_from_file_location("walk_action", ROOT / "plugins/action/trispark_walk.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("boots", ["", "6"])
def test_the_walk_has_the_boots_of_its_plan(plugin: Any, monkeypatch: pytest.MonkeyPatch, boots: str) -> None:
    asked: list[Walk] = []

    def run(walk: Walk, say: Any) -> WalkEnd:
        asked.append(walk)
        return WalkEnd("complete", "", "b1", True, 12)

    monkeypatch.setattr(plugin, "run_walk", run)
    monkeypatch.setattr(plugin, "die_with_controller", lambda: None)
    monkeypatch.setattr(plugin, "forget_outer_run", lambda environ: None)
    monkeypatch.setattr(plugin.ActionBase, "run", lambda self, tmp, task_vars: {})
    walk = {"id": "t1", "feature": "none", "value": "", "refused": "", "deadline": "", "boots": True}
    action = plugin.ActionModule.__new__(plugin.ActionModule)
    action._task = SimpleNamespace(
        args={"root": str(ROOT), "site": "lab", "stage": "c", "walk": {**walk, "boots_an_arm": boots}, "statuses": {}},
        check_mode=False,
    )
    result = action.run(None, {})
    assert (result["changed"], result["state"], result["restored"]) == (True, "complete", "b1")
    assert [(each.feature, each.boots, each.agreed) for each in asked] == [("none", boots, "")]
