"""The Engram benchmarks: every figure has its goal, and what cannot be measured has no value."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from trispark import engram_bench, pack_bench, page_cache
from trispark.engram_bench import GOALS, Goal
from trispark.errors import TrisparkError

SMALL = {"bytes": 3 << 20, "pairs": 1, "rounds": 3, "threads": 2, "fio_s": 0.2}


def test_a_small_run_measures_all_that_the_machine_has_programs_for(tmp_path: Path) -> None:
    result = engram_bench.run(tmp_path, **SMALL)
    assert list(result["figures"]) == list(GOALS)
    for name, figure in result["figures"].items():
        assert figure["value"] is None or figure["value"] >= 0
        assert figure["value"] is not None or figure["not_measured"], name
        assert figure["met"] in ((None,) if GOALS[name] == Goal() or figure["value"] is None else (True, False))
    assert result["figures"]["reads_per_row"]["met"] is True
    assert result["figures"]["pack_rss_mib"]["met"] is True
    assert result["figures"]["pack_page_cache_growth_mib"]["met"] is True
    assert all(result["host"].values())
    assert json.loads(json.dumps(result)) == result
    assert list(tmp_path.iterdir()) == []


def test_without_the_other_programs_nothing_is_made_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    argv = ["--directory", str(tmp_path), "--bytes", "1000000", "--pairs", "1", "--rounds", "2", "--threads", "1"]
    assert engram_bench.main(argv) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    for name, program in {
        "pack_vs_copy": "dd",
        "full_verify_vs_b3sum": "b3sum and sha256sum",
        "lookup_vs_fio_8": "fio",
        "lookup_vs_fio_64": "fio",
    }.items():
        assert figures[name]["not_measured"] == f"not measured: {program} missing"
        assert (figures[name]["value"], figures[name]["met"]) == (None, None)
    assert figures["reads_per_row"]["value"] == 1.0


def test_a_missed_goal_is_in_the_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setitem(GOALS, "pack_rss_mib", Goal(at_most=1))
    argv = ["--directory", str(tmp_path), "--bytes", "1000000", "--pairs", "1", "--rounds", "2"]
    assert engram_bench.main(argv) == 1


def test_files_that_do_not_fit_are_refused_before_the_first_byte(tmp_path: Path) -> None:
    with pytest.raises(TrisparkError) as caught:
        engram_bench.run(tmp_path, bytes=2**60)
    assert caught.value.id == "TS-BENCH-SPACE"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("goal", "value", "met"),
    [
        (Goal(at_least=0.9), 0.9, True),
        (Goal(at_least=0.9), 0.899, False),
        (Goal(at_most=1.15), 1.15, True),
        (Goal(at_most=1.15), 1.151, False),
        (Goal(at_least=1.0, at_most=1.0), 1.0, True),
        (Goal(at_least=1.0, at_most=1.0), 1.01, False),
        (Goal(at_least=0.9), None, None),
        (Goal(), 5.0, None),
    ],
)
def test_goals(goal: Goal, value: float | None, met: bool | None) -> None:
    assert goal.met(value) is met


def test_the_order_of_arms_turns_and_ratios_are_of_one_pair() -> None:
    called: list[str] = []
    before: list[int] = []

    def arm(name: str) -> int:
        called.append(name)
        return 1000

    arms = {name: lambda name=name: arm(name) for name in ("a", "b", "c")}
    found = pack_bench.interleaved(arms, 3, lambda: before.append(len(called)))
    assert called == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert before == list(range(9))
    assert {len(values) for values in found.mb_s.values()} == {3}
    pairs = pack_bench.Pairs({"a": [1.0, 9.0, 4.0], "b": [2.0, 3.0, 2.0], "c": [1.0, 1.0, 8.0]})
    assert pairs.ratio("a", ["b"]) == 2.0
    assert pairs.ratio("a", ["b", "c"]) == 0.5


def test_what_is_in_the_page_cache_is_told(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    assert page_cache.cached_bytes(path) == 1 << 20
    page_cache.drop(path)
    if page_cache.cached_bytes(path):
        pytest.skip("NOT TESTED further: this file system is the page cache")
    with path.open("rb") as file:
        file.read(1)
    assert 0 < page_cache.cached_bytes(path) <= 1 << 20
    (tmp_path / "empty").touch()
    assert page_cache.cached_bytes(tmp_path / "empty") == 0
