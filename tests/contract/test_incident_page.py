"""What the pages for an incident and for operations tell a person to type is there and is taken; the first is short."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from trispark.cli.app import app
from trispark.play_variables import VARIABLES
from trispark.rollback import PREVIOUS
from trispark_node import by_hand
from trispark_node.cli import VERBS, help_text
from trispark_node.fields import Fields
from trispark_node.rollback import RollbackRequest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/incident.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
SPANS = re.findall(r"`([^`]+)`", PAGE + OPERATIONS)
COMMANDS = sorted({span for span in SPANS if span.startswith("./trispark ")})
BY_HAND = sorted({span for span in SPANS if span.startswith("… ") or "bin/trispark-node " in span})
GENERATION = "g0123456789abcdef"


def words(span: str) -> list[str]:
    return span.replace("[", " ").replace("]", " ").split()[1:]


@pytest.mark.parametrize("span", COMMANDS)
def test_a_command_of_the_page_exists_with_its_options_and_variables(span: str) -> None:
    first, *rest = words(span)
    if first == "play":
        name, *rest = rest
        assert name in VARIABLES or (ROOT / f"playbooks/{name}.yml").exists()
        given = [word.partition("=")[0] for option, word in itertools.pairwise(rest) if option == "-e"]
        assert set(given) <= set(VARIABLES[name])
        return
    command: Any = typer.main.get_command(app).commands[first]  # type: ignore[attr-defined]
    while getattr(command, "commands", None):
        command = command.commands[rest.pop(0)]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in rest if word.startswith("-")} <= options


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) > 10
    assert len(BY_HAND) > 4


def test_the_page_is_one_to_read_at_night_and_names_the_site_first() -> None:
    sections = [line.removeprefix("## ") for line in PAGE.splitlines() if line.startswith("## ")]
    assert sections == ["By hand on one node", "After a power cut"]
    assert len(PAGE.split()) < 1000
    first = next(line for line in PAGE.splitlines()[1:] if line)
    assert "`export TRISPARK_SITE=NAME`" in first
    assert "`TS-SITE-AMBIGUOUS`" in PAGE.split("|", 1)[0]


def rows() -> dict[str, str]:
    """{what is seen: what is typed}"""
    cells = [line.strip("|").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    return {row[0].strip(): row[1].strip() for row in cells}


@pytest.mark.parametrize(
    ("seen", "typed"),
    [
        ("never passed its gates", "`./trispark rollback`"),
        ("passed its gates, and serves badly", f"--to {PREVIOUS}`"),
        ("a trial or a campaign runs", "`./trispark rollback`"),
        ("a Docker Engine hangs", "`./trispark rollback`"),
        ("`NOT AN IMAGE OF THIS SITE`", "nothing"),
    ],
)
def test_what_is_seen_has_one_row(seen: str, typed: str) -> None:
    found = [command for what, command in rows().items() if seen in what]
    assert len(found) == 1
    assert typed in found[0]


@pytest.mark.parametrize("span", BY_HAND)
def test_what_is_typed_on_a_node_is_taken_there(span: str) -> None:
    verb, *rest = words(span)
    if "bin/trispark-node " in span:
        verb, *rest = rest
    values = {"ID": GENERATION, "N": "7", "NAME": "by-hand", "ID|good": "good"}
    request = by_hand.request(verb, [values.get(word, word) for word in rest])
    VERBS[verb]
    assert set(request) <= {"to", "epoch", "boot_id", "deadline_s"}


def targets(text: str) -> list[str]:
    return [
        word
        for found in re.findall(r"(?:…|trispark-node) rollback \[--to ([^\]]+)\]", text)
        for word in found.split("|")
    ]


@pytest.mark.parametrize("text", [PAGE, help_text()], ids=["page", "help"])
def test_each_target_of_a_rollback_by_hand_is_one(text: str) -> None:
    assert targets(text)
    for word in targets(text):
        request = {"to": GENERATION if word == "ID" else word}
        assert RollbackRequest.parse(Fields(request, "request")).to == request["to"]
