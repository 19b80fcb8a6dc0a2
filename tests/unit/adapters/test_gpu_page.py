"""The page of the GPU results: of the committed results, and it says what does not reach its goal."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from trispark import gpu_page
from trispark.gpu_page import PAGE, RESULTS, ROOT, WO_A_GOALS, main, page

HEAD_ROWS = ("3", "4", "5", "6", "8", "10", "12", "15", "16", "18", "20")


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return json.loads((ROOT / RESULTS).read_text(encoding="utf-8"))


def test_the_page_is_of_the_results(results: dict[str, Any]) -> None:
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page(results), "run: python -m trispark.gpu_page"


def test_the_results_are_whole(results: dict[str, Any]) -> None:
    assert results["errors"] == []
    assert not results["quick"]
    assert set(WO_A_GOALS) <= results["wo_a_ratio"].keys()
    assert set(HEAD_ROWS) <= results["draft_head_ratio"].keys()
    for name, key in (("wo_a", "wo_a_ratio"), ("draft_head", "draft_head_ratio")):
        for rows, ratio in results[key].items():
            raw = results["raw"][name][rows]
            assert ratio == raw["ratio"] == round(raw["bf16"]["median_us"] / raw["twin"]["median_us"], 3)
    found = results["gb10_projection"]
    inputs = found["inputs"]
    factor = inputs["multiprocessors"] * inputs["clock_ghz"] / (48 * 2.4)
    assert inputs["factor"] == round(factor, 4)
    assert found["limit_us"] == round(0.8 * inputs["twin_bytes"] / 273e9 * 1e6, 2)
    for row in found["rows"].values():
        assert row["projected_us"] == round(row["resident_us"] * factor, 2)
        assert row["holds"] == (row["resident_us"] * factor < 0.8 * inputs["twin_bytes"] / 273e9 * 1e6)


def test_the_results_name_no_place(results: dict[str, Any]) -> None:
    text = json.dumps(results)
    assert str(ROOT) not in text
    assert not any(place in text for place in ("/tmp/", "/home/", "/root/", "/work/"))


@pytest.mark.parametrize(
    ("part", "rows", "goal"), [("wo_a", "24", "1.2"), ("wo_a", "3", "1.3"), ("draft_head", "20", "1.5")]
)
def test_what_misses_its_goal_is_said(results: dict[str, Any], part: str, rows: str, goal: str) -> None:
    changed = copy.deepcopy(results)
    changed["raw"][part][rows]["ratio"] = float(goal) - 0.01
    assert f"at least {goal}: NO" not in page(results)
    assert f"at least {goal}: NO" in page(changed)


def test_an_acceptance_that_is_slow_is_said(results: dict[str, Any]) -> None:
    changed = copy.deepcopy(results)
    changed["block_verify"]["times_bs4"]["ratio"]["graph"] = 1.21
    assert "at most 1.2: NO" not in page(results)
    assert "at most 1.2: NO" in page(changed)


def test_errors_are_listed(results: dict[str, Any]) -> None:
    assert "1 errors:\n- broken: this" in page(results | {"errors": ["first line\nbroken: this\n"]})


def test_parts_that_did_not_run_are_left_out(results: dict[str, Any]) -> None:
    few = {name: results[name] for name in ("command", "date", "device", "errors")}
    text = page(few)
    assert "wo_a" not in text
    assert "Draft head" not in text
    assert "ahead" not in text


def test_check_compares(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, results: dict[str, Any]) -> None:
    monkeypatch.setattr(gpu_page, "ROOT", tmp_path)
    (tmp_path / RESULTS).parent.mkdir(parents=True)
    (tmp_path / RESULTS).write_text(json.dumps(results), encoding="utf-8")
    assert main([]) == 0
    assert main(["--check"]) == 0
    (tmp_path / PAGE).write_text("other", encoding="utf-8")
    assert main(["--check"]) == 1
