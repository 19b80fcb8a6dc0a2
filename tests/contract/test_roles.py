"""Each role says the same in its defaults, its argument_specs and its README."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
# Roles without tasks/main.yml are used by their entry points alone.
ROLES = sorted(path.name for path in ROOT.joinpath("roles").iterdir())
HEADINGS = ("Purpose", "What it changes", "What it never changes", "Variables", "Failure and rollback", "Tests")


def load(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8")) or {}


def defaults(role: str) -> dict:
    path = ROOT / "roles" / role / "defaults" / "main.yml"
    return load(path) if path.exists() else {}


def specs(role: str) -> dict[str, dict]:
    """All options of all entry points by name."""
    found: dict[str, dict] = {}
    for entry in load(ROOT / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"].values():
        found.update(entry.get("options") or {})
    return found


@pytest.mark.parametrize("role", ROLES)
def test_defaults_equal_argument_specs(role: str) -> None:
    declared = {name: option["default"] for name, option in specs(role).items() if "default" in option}
    assert declared == defaults(role)


@pytest.mark.parametrize("role", ROLES)
def test_public_names_carry_the_role(role: str) -> None:
    assert [name for name in specs(role) if not name.startswith(f"{role}_")] == []


@pytest.mark.parametrize("role", ROLES)
def test_every_entry_point_is_a_task_file(role: str) -> None:
    entries = load(ROOT / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"]
    assert [entry for entry in entries if not (ROOT / "roles" / role / "tasks" / f"{entry}.yml").is_file()] == []


def shown(option: dict) -> str:
    """A default as a README shows it; what comes from other variables as the expression."""
    if "default" not in option:
        return "required"
    value = option["default"]
    text = value if isinstance(value, str) else json.dumps(value)
    return f"`{text}`".replace("|", "\\|")


def variables(text: str) -> dict[str, tuple[str, ...]]:
    """{name: (type, default, meaning)} of the table under Variables."""
    section = text.partition("## Variables")[2].partition("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in section.splitlines() if line.startswith("| `")]
    return {cells[0].strip(" `"): tuple(cell.strip() for cell in cells[1:]) for cells in rows}


@pytest.mark.parametrize("role", ROLES)
def test_readme_has_the_headings_and_every_variable_as_it_is(role: str) -> None:
    text = (ROOT / "roles" / role / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == list(HEADINGS)
    assert variables(text) == {
        name: (option["type"], shown(option), option["description"]) for name, option in specs(role).items()
    }
