"""`./trispark bench rounds`: what it plays, and what it says when it is interrupted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.front.test_cli import FakePlaybooks, add_site, checkout, result, run_cli

__all__ = ["checkout", "run_cli"]  # fixtures
RunCli = Callable[..., tuple[int, list[str], str]]
FEATURE = ("-e", "feature=engram_prefetch")


@pytest.mark.parametrize(("arguments", "rounds"), [([], "8"), (["--rounds", "12"], "12")])
def test_it_plays_the_rounds(run_cli: RunCli, arguments: list[str], rounds: str) -> None:
    playbooks = FakePlaybooks({})
    status, out, _ = run_cli("bench", "rounds", *FEATURE, *arguments, "--json", playbooks=playbooks)
    assert (status, out[0]) == (0, "site: lab")
    assert playbooks.played == [("rounds", "lab", {"feature": "engram_prefetch", "rounds": rounds})]
    assert json.loads(out[-1])["playbook"] == "rounds"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-e", "value=1"],
        [*FEATURE, "-e", "boots=6"],
        [*FEATURE, "--rounds", "7"],
        [*FEATURE, "--rounds", "65"],
    ],
)
def test_mistakes_play_nothing(run_cli: RunCli, arguments: list[str]) -> None:
    playbooks = FakePlaybooks({})
    assert run_cli("bench", "rounds", *arguments, playbooks=playbooks)[0] == 2
    assert playbooks.played == []


@pytest.mark.parametrize(("arguments", "observed"), [([], "nothing"), ([*FEATURE, "-e", "boots=6"], "boots, feature")])
def test_what_rounds_take_is_said(run_cli: RunCli, arguments: list[str], observed: str) -> None:
    """By this verb, not by the playbook that it would play."""
    _, _, err = run_cli("bench", "rounds", *arguments, playbooks=FakePlaybooks({}))
    assert "TS-CLI-EXTRA: rounds take -e feature=NAME and nothing else" in err
    assert f"observed: {observed};" in err


def test_it_refuses_to_guess_the_site(run_cli: RunCli, checkout: Any) -> None:
    add_site(checkout, "sparks", "site_configured: true\n")
    playbooks = FakePlaybooks({})
    status, _, err = run_cli("bench", "rounds", *FEATURE, playbooks=playbooks)
    assert (status, playbooks.played, "TS-SITE-AMBIGUOUS" in err) == (3, [], True)


def test_an_interruption_says_how_the_switch_comes_back(run_cli: RunCli) -> None:
    playbooks = FakePlaybooks({"rounds": result("rounds", status="interrupted")})
    status, _, err = run_cli("bench", "rounds", *FEATURE, playbooks=playbooks)
    assert status != 0
    assert "the load client on the head brings the switch back" in err
