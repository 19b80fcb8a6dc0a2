"""The hooks on the real modules of a release: attached by the interpreter's start, in order; absent when all is off."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sglang

from trispark.engine_api.import_check import BESIDE, ON
from trispark_hooks import binding, needs
from trispark_hooks.registry import HOOKS
from trispark_hooks.switches import HookError

ROOT = Path(__file__).resolve().parents[2]
ENGINE = tuple(hook for hook in HOOKS if hook.module.startswith("sglang."))
MODULES = tuple(dict.fromkeys(hook.module for hook in ENGINE))
SWITCHED_ON = {**ON, **BESIDE}
LOOK = """
import importlib, json, sys
from pathlib import Path

def marks(module):
    classes = (value for value in vars(module).values() if isinstance(value, type))
    owners = [module, *(each for each in classes if each.__module__ == module.__name__)]  # not what it imported
    found = {}
    for owner in owners:
        for key, value in list(vars(owner).items()):
            value = getattr(value, "__func__", value)
            mark = getattr(value, "__trispark_adapters__", None)
            if mark:
                found[f"{owner.__name__}.{key}"] = [list(mark), id(value)]
    return found

modules = {name: importlib.import_module(name) for name in sys.argv[1:]}
found = {name: sorted(getattr(module, "__trispark_hooks__", ())) for name, module in modules.items()}
ours = sorted(m for m in sys.modules if m.startswith(("trispark_adapters", "trispark_hooks")))
first = {name: marks(module) for name, module in modules.items()}
for name, installers in found.items():
    for installer in installers:
        file, _, function = installer.partition(":")
        getattr(importlib.import_module(file), function)(modules[name])
again = {name: marks(module) for name, module in modules.items()}
print(json.dumps({"hooks": found, "ours": ours, "first": first, "again": again}))
"""


def present(module: str) -> bool:
    path = Path(sglang.__file__).parents[1].joinpath(*module.split("."))
    return path.with_suffix(".py").is_file()


def run(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """An interpreter that has the adapters on its path, as in the container, and imports every hooked module."""
    plain = {
        name: value for name, value in os.environ.items() if not name.startswith(("DSV41_", "OFFLOAD_", "TRITON_"))
    }
    argv = [sys.executable, "-c", LOOK, *filter(present, MODULES)]
    return subprocess.run(argv, env={**plain, **environ}, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def hooked() -> dict[str, Any]:
    done = run(SWITCHED_ON)
    assert done.returncode == 0, done.stderr[-2000:]
    # Where the engine has a mechanism itself, its adapter asks for the engine's flag.
    refused = [line for line in done.stdout.splitlines() if "state=refused" in line and "native=1" not in line]
    assert refused == []
    return json.loads(done.stdout.splitlines()[-1])


def test_every_hook_is_installed_at_the_start_of_the_interpreter(hooked: dict[str, Any]) -> None:
    expected = {
        module: sorted(hook.installer for hook in ENGINE if hook.module == module)
        for module in MODULES
        if present(module)
    }
    assert hooked["hooks"] == expected


def test_what_is_marked_names_the_adapters_of_that_module_in_their_order(hooked: dict[str, Any]) -> None:
    for module, found in hooked["first"].items():
        order = list(dict.fromkeys(hook.adapter for hook in ENGINE if hook.module == module))
        for owner, (adapters, _) in found.items():
            known = [adapter for adapter in adapters if adapter in order]
            assert known == sorted(known, key=order.index), (module, owner)


def test_a_second_call_of_every_installer_changes_nothing(hooked: dict[str, Any]) -> None:
    assert any(hooked["first"].values())
    assert hooked["again"] == hooked["first"]


def test_with_every_switch_off_nothing_of_ours_is_imported_but_the_registry() -> None:
    off = {"DSV41_SOURCE": "/model", "DSV41_TP_PAD": "0", "DSV41_DRAFT_TAU": "1", "DSV41_VERIFY_CAP": "0"}
    done = run(off)
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert [name for name in answer["ours"] if name.startswith("trispark_adapters")] == []
    assert [name for name, found in answer["first"].items() if found] == []


def entries():
    for adapter, entry in needs.adapters().items():
        for need in [*entry["needs"], *(each for group in entry.get("any", ()) for option in group for each in option)]:
            yield pytest.param(need, id=f"{adapter}-{need['module'].rsplit('.', 1)[-1]}-{need.get('symbol')}")


@pytest.mark.parametrize("need", list(entries()))
def test_the_static_reader_and_the_interpreter_agree(need) -> None:
    from trispark.engine_api.interface import Symbol
    from trispark.engine_api.sources import SourceInterface

    read = SourceInterface.of_directory(Path(sglang.__file__).parents[1])
    module = importlib.import_module(need["module"])
    for symbol in (need.get("symbol"), f"{need.get('symbol')}_gone"):
        found = read.find(need["module"], symbol)
        try:
            real = binding.symbol(module, symbol)
        except HookError:
            real = None
        assert isinstance(found, Symbol) is (real is not None), symbol
        names = need.get("parameters", ())
        if real is None or not names:
            continue
        gone, _ = found.lost([*names, "no_such_parameter"])
        lost = [name for name in [*names, "no_such_parameter"] if not takes(real, name)]
        assert gone == lost


def takes(function, name: str) -> bool:
    try:
        binding.require_parameters(function, name)
    except HookError:
        return False
    return True
