"""The hooks on the real modules of a release: attached by the interpreter's start, in order; absent when all is off."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sglang

from trispark_hooks import binding, needs
from trispark_hooks.registry import HOOKS
from trispark_hooks.switches import HookError

ROOT = Path(__file__).resolve().parents[2]
ENGINE = tuple(hook for hook in HOOKS if hook.module.startswith("sglang."))
MODULES = tuple(dict.fromkeys(hook.module for hook in ENGINE))
ON = {
    "DSV41_AUTOTUNE_KEEP": "1",
    "DSV41_BLOCK_VERIFY": "1",
    "DSV41_DRAFT_HEAD_FP8": "1",
    "DSV41_DRAFT_TAU": "0.8",
    "DSV41_ENGRAM_PREFETCH": "1",
    "DSV41_FOLDED_FENCE": "1",
    "DSV41_MXFP8_BACKEND": "b12x",
    "DSV41_PACKED_DIR": "/engram",
    "DSV41_PADDED_ATTENTION_SKIP": "1",
    "DSV41_PREFILL_EMPTY_CACHE_TOKENS": "8192",
    "DSV41_SOURCE": "/model",
    "DSV41_TP_PAD": "1",
    "DSV41_VERIFY_CAP": "conf:0.1",
    "DSV41_WO_A_W8": "1",
    "OFFLOAD_MODE": "nvme",
    "DSPARK_BLOCK_SIZE": "5",
    "SGLANG_DSPARK_FOLDED_SAMPLING": "2",
}
LOOK = """
import importlib, json, sys
found = {}
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    found[name] = sorted(getattr(module, "__trispark_hooks__", ()))
print(json.dumps([found, sorted(m for m in sys.modules if m.startswith(("trispark_adapters", "trispark_hooks")))]))
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


def test_every_hook_is_installed_at_the_start_of_the_interpreter() -> None:
    done = run(ON)
    assert done.returncode == 0, done.stderr[-2000:]
    found, _ = json.loads(done.stdout.splitlines()[-1])
    expected = {
        module: sorted(hook.installer for hook in ENGINE if hook.module == module)
        for module in MODULES
        if present(module)
    }
    assert found == expected
    assert "state=refused" not in done.stdout


def test_with_every_switch_off_nothing_of_ours_is_imported_but_the_registry() -> None:
    off = {"DSV41_SOURCE": "/model", "DSV41_TP_PAD": "0", "DSV41_DRAFT_TAU": "1", "DSV41_VERIFY_CAP": "0"}
    done = run(off)
    assert done.returncode == 0, done.stderr[-2000:]
    found, ours = json.loads(done.stdout.splitlines()[-1])
    assert set(map(tuple, found.values())) == {()}
    assert [name for name in ours if name.startswith("trispark_adapters")] == []
    without = run({})
    assert json.loads(without.stdout.splitlines()[-1])[1] == []


@pytest.mark.parametrize("hook", ENGINE, ids=lambda hook: hook.installer)
def test_installers_are_idempotent_on_the_real_module(hook, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call puts no second wrapper in front; judged by the marks of everything in the module."""
    if not present(hook.module):
        pytest.skip(f"{sglang.__version__} has no {hook.module}")
    code = f"""
import importlib, sys
from trispark_hooks.binding import MARK
module = importlib.import_module({hook.module!r})
name, _, function = {hook.installer!r}.partition(":")
def marks():
    owners = [module, *(value for value in vars(module).values() if isinstance(value, type))]
    found = {{}}
    for owner in owners:
        for key, value in list(vars(owner).items()):
            value = getattr(value, "__func__", value)
            mark = getattr(value, MARK, None)
            if mark:
                found[getattr(owner, "__name__", "?"), key] = (mark, id(value))
    return found
first = marks()
assert first, "nothing is marked"
getattr(importlib.import_module(name), function)(module)
assert marks() == first, (first, marks())
"""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    native = needs.adapters().get(hook.adapter, {}).get("native")
    if native and sglang.__version__ != "0.5.21":
        pytest.skip("native here: nothing is patched")
    done = subprocess.run(
        [sys.executable, "-c", code], env={**plain, **ON}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-1500:]


def entries():
    for adapter, entry in needs.adapters().items():
        for need in [*entry["needs"], *(each for group in entry.get("any", ()) for option in group for each in option)]:
            yield pytest.param(need, id=f"{adapter}-{need['module'].rsplit('.', 1)[-1]}-{need.get('symbol')}")


@pytest.mark.parametrize("need", entries())
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
