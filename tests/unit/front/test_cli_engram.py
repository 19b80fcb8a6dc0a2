"""`./trispark engram`: which playbook each verb plays with which values, and what it prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.front.test_cli import FakePlaybooks, LabOfAnotherVersion, add_site, checkout, result, run_cli

from trispark import engram_bench
from trispark.cli.engram import bench_lines

__all__ = ["checkout", "run_cli"]  # fixtures
RunCli = Callable[..., tuple[int, list[str], str]]


@pytest.mark.parametrize(
    ("arguments", "playbook", "extra"),
    [
        (["pack"], "shards", {}),
        (["pack", "--repair"], "shards", {"repair": "true"}),
        (["pack", "--limit-mib-s", "200"], "shards", {"limit_mib_s": "200"}),
        (["pack", "--limit-mib-s", "0", "--check"], "shards", {"limit_mib_s": "0"}),
        (["verify"], "shards_verify", {"level": "quick"}),
        (["verify", "--level", "full"], "shards_verify", {"level": "full"}),
        (
            ["verify", "--level", "deep", "--limit-mib-s", "1.5"],
            "shards_verify",
            {"level": "deep", "limit_mib_s": "1.5"},
        ),
        (["inspect"], "shards_inspect", {}),
    ],
)
def test_each_verb_plays_its_playbook(run_cli: RunCli, arguments: list[str], playbook: str, extra: Any) -> None:
    playbooks = FakePlaybooks({})
    status, out, _ = run_cli("engram", *arguments, playbooks=playbooks)
    assert (status, playbooks.played) == (0, [(playbook, "lab", extra)])
    assert out[0] == "site: lab"
    assert out[-1].startswith(f"{playbook}: done in 1.5 s")


@pytest.mark.parametrize("arguments", [["verify", "--level", "all"], ["pack", "--limit-mib-s", "-1"], ["bench"], ["x"]])
def test_mistakes(run_cli: RunCli, arguments: list[str]) -> None:
    playbooks = FakePlaybooks({})
    assert run_cli("engram", *arguments, playbooks=playbooks)[0] == 2
    assert playbooks.played == []


def test_packing_refuses_to_guess_the_site_and_looking_may(run_cli: RunCli, checkout: Any) -> None:
    add_site(checkout, "sparks", "site_configured: true\n")
    playbooks = FakePlaybooks({})
    status, _, err = run_cli("engram", "pack", playbooks=playbooks)
    assert (status, playbooks.played, "TS-SITE-AMBIGUOUS" in err) == (3, [], True)
    assert run_cli("engram", "inspect", playbooks=playbooks)[0] == 0
    assert run_cli("engram", "pack", "--site", "sparks", playbooks=playbooks)[0] == 0
    assert [site for _, site, _ in playbooks.played] == ["lab", "sparks"]


@pytest.mark.parametrize(("arguments", "status"), [(["pack"], 3), (["pack", "--check"], 3), (["verify"], 0)])
def test_a_lab_of_another_version_is_not_packed_for(
    run_cli: RunCli, checkout: Any, arguments: list[str], status: int
) -> None:
    assert run_cli("engram", *arguments, engine=LabOfAnotherVersion(checkout, "0"))[0] == status


def test_json_has_the_nodes(run_cli: RunCli) -> None:
    shards = {"spark0": {"files": [{"file": "f", "state": "ok"}], "others": [], "network": None}}
    playbooks = FakePlaybooks({"shards_inspect": result("shards_inspect", published={"shards": shards})})
    _, out, _ = run_cli("engram", "inspect", "--json", playbooks=playbooks)
    found = json.loads(out[-1])
    assert (found["nodes"], found["site"], found["status"]) == (shards, "lab", "successful")


def figures(value: float | None, met: bool | None) -> dict[str, Any]:
    return {
        "figures": {
            "pack_vs_copy": {"value": value, "goal": {"at_least": 0.9}, "met": met, "not_measured": "no dd"},
            "cache_hit_ns": {"value": 123.456, "goal": {}, "met": None},
        }
    }


@pytest.mark.parametrize(
    ("value", "met", "status", "line"),
    [
        (0.95, True, 0, "pack_vs_copy  0.95  (at least 0.9: met)"),
        (0.5, False, 1, "pack_vs_copy  0.5  (at least 0.9: MISSED)"),
    ],
)
def test_bench_measures_here_and_says_each_goal(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, value: float, met: bool, status: int, line: str
) -> None:
    asked: list[Any] = []

    def run(*given: Any) -> dict[str, Any]:
        asked.append(given)
        return figures(value, met)

    monkeypatch.setattr(engram_bench, "run", run)
    playbooks = FakePlaybooks({})
    found, out, _ = run_cli(
        "engram",
        "bench",
        "--directory",
        str(tmp_path),
        "--bytes",
        "4096",
        "--pairs",
        "3",
        "--json",
        playbooks=playbooks,
    )
    assert (found, asked, playbooks.played) == (status, [(tmp_path, 4096, 3)], [])
    assert out[:3] == [f"this machine: {tmp_path}", line, "cache_hit_ns  123.5"]
    assert json.loads(out[-1]) == figures(value, met)


def test_what_was_not_measured_says_why() -> None:
    lines = bench_lines(
        {"pack_vs_copy": {"value": None, "goal": {"at_least": 0.9}, "met": None, "not_measured": "no dd"}}
    )
    assert lines == ["pack_vs_copy  no dd  (at least 0.9: not judged)"]
