"""The action plugins that work on the controller say the same in their argument spec and in their documentation."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml

from trispark.controller_action import ControllerAction

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTED = sorted(path.stem for path in ROOT.glob("plugins/modules/*.py"))
ON_A_NODE = {"trispark_node"}
PLUGINS = sorted(set(DOCUMENTED) - ON_A_NODE)
TEXTS = ("DOCUMENTATION", "EXAMPLES", "RETURN")
SPEC = ("type", "required", "default", "choices", "elements")


def action(name: str) -> Any:
    """The class that Ansible would load."""
    spec = importlib.util.spec_from_file_location(f"action_{name}", ROOT / "plugins/action" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ActionModule


def statements(name: str) -> list[ast.stmt]:
    return ast.parse((ROOT / "plugins/modules" / f"{name}.py").read_text(encoding="utf-8")).body


def texts(name: str) -> dict[str, Any]:
    """The documentation by the name of its variable, read as YAML."""
    return {
        each.targets[0].id: yaml.safe_load(ast.literal_eval(each.value))
        for each in statements(name)
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
    }


def test_every_documentation_has_its_action_and_every_controller_action_its_documentation() -> None:
    """A documentation alone would be a module that does nothing; ansible-doc shows none for an action alone."""
    assert len(PLUGINS) > 10
    assert [name for name in DOCUMENTED if not (ROOT / "plugins/action" / f"{name}.py").is_file()] == []
    ours = {
        path.stem for path in ROOT.glob("plugins/action/*.py") if "ControllerAction" in path.read_text(encoding="utf-8")
    }
    assert ours == set(PLUGINS)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_documentation_runs_nothing(name: str) -> None:
    """Else Ansible would have two programs of one name, and only one of them would be the tested one."""
    first, *rest = statements(name)
    assert isinstance(first, ast.Expr)
    kept = [each for each in rest if not isinstance(each, ast.ImportFrom) or each.module != "__future__"]
    assert [each.targets[0].id for each in kept if isinstance(each, ast.Assign)] == list(TEXTS)  # type: ignore[attr-defined]
    assert len(kept) == len(TEXTS)


@pytest.mark.parametrize("name", PLUGINS)
def test_options_are_the_argument_spec(name: str) -> None:
    found = texts(name)["DOCUMENTATION"]
    assert found["module"] == name
    options = {option: {key: said[key] for key in SPEC if key in said} for option, said in found["options"].items()}
    assert options == action(name).ARGUMENTS
    for option in action(name).ARGUMENTS.values():
        assert option.get("required", False) is not ("default" in option), "an argument is required or has a default"


@pytest.mark.parametrize("name", PLUGINS)
def test_check_mode_is_what_the_documentation_says(name: str) -> None:
    plugin = action(name)
    assert issubclass(plugin, ControllerAction)
    support = texts(name)["DOCUMENTATION"]["attributes"]["check_mode"]["support"]
    assert support == ("full" if plugin._supports_check_mode else "none")


@pytest.mark.parametrize("name", PLUGINS)
def test_an_example_gives_arguments_that_exist(name: str) -> None:
    arguments = action(name).ARGUMENTS
    required = {option for option, said in arguments.items() if said.get("required")}
    for task in texts(name)["EXAMPLES"]:
        assert required <= set(task[name]) <= set(arguments), task["name"]
