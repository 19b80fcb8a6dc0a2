"""`./trispark bench truth`: what it measures, and what it answers to a wrong wish."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trispark import cli
from trispark.cli import bench as verb
from trispark_bench.truth import run as truth_module
from trispark_bench.truth.clients import ClientFailed

Run = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def asked() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def bench(
    tmp_path: Path, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """The verb, with a truth test that only notes what it was asked for."""

    def truth(clients, widths, rounds, folder, say):
        asked.append({"clients": [client.name for client in clients], "widths": widths, "rounds": rounds})
        assert folder.is_dir()
        say("measured")
        return {"goals_met": True, "tokens_exact": True}

    monkeypatch.setattr(truth_module, "truth", truth)
    monkeypatch.setattr(verb, "REPO", tmp_path)

    def run(*arguments: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "argv", ["trispark", "bench", "truth", *arguments])
        status = cli.main()
        captured = capsys.readouterr()
        return status, captured.out.splitlines(), captured.err

    return run


def test_all_clients_at_four_and_many_streams(bench: Run, asked: list[dict[str, Any]]) -> None:
    status, lines, _ = bench("--json")
    assert status == 0
    assert lines[0] == "site: lab"
    assert json.loads(lines[-1]) == {"goals_met": True, "tokens_exact": True}
    assert asked == [
        {"clients": ["trispark", "aiohttp-lines", "aiperf", "llama-benchy"], "widths": [4, 64], "rounds": 9}
    ]


def test_ours_is_always_measured(bench: Run, asked: list[dict[str, Any]]) -> None:
    assert bench("--clients", "aiperf", "--streams", "8", "--rounds", "2")[0] == 0
    assert asked == [{"clients": ["trispark", "aiperf"], "widths": [8], "rounds": 2}]


@pytest.mark.parametrize(
    "arguments",
    [["--streams", "0"], ["--streams", "4,,8"], ["--streams", "many"], ["--rounds", "0"], ["--clients", "curl"]],
)
def test_a_wrong_wish_is_a_usage_error(bench: Run, asked: list[dict[str, Any]], arguments: list[str]) -> None:
    assert bench(*arguments)[0] == 2
    assert asked == []


def test_a_client_that_does_not_end_well_is_named(bench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def truth(*_: Any) -> None:
        raise ClientFailed("python ended with 1: no room")

    monkeypatch.setattr(truth_module, "truth", truth)
    status, _, error = bench()
    assert status == 1
    assert "TS-TRUTH-CLIENT: " in error
    assert "no room" in error


@pytest.mark.parametrize("fails_at", [0, 1])
def test_public_clients_are_installed_from_their_lock(
    bench: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    ran: list[list[str]] = []

    def run(argv: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(argv)
        bad = len(ran) - 1 == fails_at
        return subprocess.CompletedProcess(argv, int(bad), "", "no\nno such package" if bad else "")

    monkeypatch.setattr(verb.subprocess, "run", run)
    status, _, error = bench("--install")
    assert (status, len(ran)) == (1, fails_at + 1)
    assert "TS-TRUTH-INSTALL" in error
    assert "no such package" in error
    target = tmp_path / ".trispark/truth/public"
    assert ran[0][1:] == ["-m", "venv", str(target)]
    assert not fails_at or {"--require-hashes", str(tmp_path / "requirements/truth.txt")} <= set(ran[1])
