"""Every playbook that changes nodes takes the fleet lock once, before it, and gives it back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from trispark.cli.play import READ_ONLY
from trispark.play_variables import VARIABLES
from trispark_node.cli import VERBS

PLAYBOOKS = Path(__file__).resolve().parents[2] / "playbooks"
WITHOUT = {
    "demo_incident": "an incident asks nobody",
    "lab_down": "the nodes themselves go",
    "lab_up": "there are no nodes yet",
    "rollback": "breaks the lock by itself",
}
CHANGING = sorted(set(VARIABLES) - READ_ONLY - set(WITHOUT))
READS = ("preflight.yml",)
"""Before the lock nodes may only be looked at."""


def flat(path: Path, given: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(file, play, variables around it) in the order in which they run."""
    for part in yaml.safe_load(path.read_text(encoding="utf-8")):
        variables = {**part.get("vars", {}), **given}
        if "import_playbook" in part:
            yield from flat(path.parent / part["import_playbook"], variables)
        else:
            yield path.name, part, variables


def only_reads(play: dict[str, Any]) -> bool:
    calls = [task.get("trispark_node", {}) for task in play.get("tasks", ())]
    verbs = [step.get("verb") for call in calls for step in call.get("steps", [call])]
    return "roles" not in play and all(verb in VERBS and not VERBS[verb].changes for verb in verbs)


@pytest.mark.parametrize("name", CHANGING)
def test_a_changing_playbook_holds_the_lock_around_what_it_does(name: str) -> None:
    plays = [(file, play) for file, play, given in flat(PLAYBOOKS / f"{name}.yml", {}) if not skipped(file, given)]
    files = [file for file, _ in plays]
    assert (files.count("lock.yml"), files.count("unlock.yml")) == (2, 1), "two plays, and one"
    first, last = files.index("lock.yml"), files.index("unlock.yml")
    for file, play in [*plays[:first], *plays[last + 1 :]]:
        assert file in READS or play["hosts"] == "localhost" or only_reads(play), (
            f"{file}: {play['name']} is outside of the lock"
        )
    assert any(play["hosts"] == "sparks" or name == "campaign" for _, play in plays[first + 2 : last])


def skipped(file: str, given: dict[str, Any]) -> bool:
    return file in ("lock.yml", "unlock.yml") and bool(given.get("lock_outside"))


@pytest.mark.parametrize("name", sorted(READ_ONLY))
def test_a_playbook_that_only_reads_takes_none(name: str) -> None:
    assert not {"lock.yml", "unlock.yml"} & {file for file, _, _ in flat(PLAYBOOKS / f"{name}.yml", {})}


def test_what_goes_without_is_there_and_takes_none() -> None:
    for name in WITHOUT:
        files = [file for file, _, given in flat(PLAYBOOKS / f"{name}.yml", {})]
        assert "lock.yml" not in files
        # What a rollback took by its first changing call it gives back.
        assert ("unlock.yml" in files) is (name == "rollback")
