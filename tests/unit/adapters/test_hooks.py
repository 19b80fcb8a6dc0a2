import ast
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from trispark_hooks import finder, needs
from trispark_hooks.finder import HookFinder, apply_hooks
from trispark_hooks.registry import HOOKS, Hook, HookError, hooks_of
from trispark_hooks.switches import Flag

ROOT = Path(__file__).resolve().parents[3]
CALLS: list[str] = []


def good(module: ModuleType) -> None:
    CALLS.append(module.__name__)


def bad(module: ModuleType) -> None:
    raise AttributeError("project is missing")


@pytest.fixture
def installers(monkeypatch: pytest.MonkeyPatch) -> None:
    CALLS.clear()
    module = ModuleType("hook_test_installers")
    module.__dict__.update(good=good, bad=bad)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def hook(function: str, module: str = "hook_target", **more: bool) -> Hook:
    return Hook("an_adapter", module, f"hook_test_installers:{function}", (Flag("DSV41_X"),), **more)


def test_a_hook_is_on_when_all_its_switches_are_and_each_is_read() -> None:
    both = Hook("an_adapter", "m", "m:f", (Flag("DSV41_X"), Flag("DSV41_Y")))
    assert both.enabled({"DSV41_X": "1", "DSV41_Y": "1"})
    assert not both.enabled({"DSV41_X": "1"})
    with pytest.raises(HookError, match="TS-ADAPTER-SWITCH"):
        both.enabled({"DSV41_Y": "maybe"})


def test_an_unregistered_module_is_an_error() -> None:
    with pytest.raises(HookError, match="TS-ADAPTER-UNKNOWN"):
        hooks_of("trispark_lab.model")
    assert [each.adapter for each in hooks_of("trispark_lab.projection")] == ["lab_wo_a_w8"]


def test_hooks_run_once(installers: None) -> None:
    module = ModuleType("hook_target")
    for _ in range(2):
        apply_hooks(module, {"DSV41_X": "1"}, (hook("good"),))
    assert CALLS == ["hook_target"]
    apply_hooks(ModuleType("hook_target"), {}, (hook("good"),))
    assert CALLS == ["hook_target"]


def test_a_failing_hook_is_one_line(installers: None) -> None:
    with pytest.raises(HookError, match=r"TS-ADAPTER-INSTALL: .*AttributeError: project is missing") as caught:
        apply_hooks(ModuleType("hook_target"), {"DSV41_X": "1"}, (hook("bad"),))
    assert "\n" not in str(caught.value)


def test_an_adapter_that_lacks_something_is_refused_before_any_hook_of_the_module_runs(
    installers: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    entry = {"needs": [{"module": "hook_target", "symbol": "Model.forward", "parameters": ["ids"]}]}
    monkeypatch.setattr(needs, "adapters", lambda: {"second": entry})
    module = ModuleType("hook_target")
    second = Hook("second", "hook_target", "hook_test_installers:good", (Flag("DSV41_X"),))
    with pytest.raises(HookError, match=r"^TS-ADAPTER-SYMBOL: .*hook_target.* expected: Model\.forward"):
        apply_hooks(module, {"DSV41_X": "1"}, (hook("good"), second))
    assert CALLS == []
    said = capfd.readouterr().out
    assert said.startswith("[trispark] adapter=second rank=- state=refused reason=")
    module.Model = type("Model", (), {"forward": lambda self, ids: ids})  # type: ignore[attr-defined]
    apply_hooks(module, {"DSV41_X": "1"}, (hook("good"), second))
    assert CALLS == ["hook_target", "hook_target"]


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "hook_target.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "hook_target", raising=False)
    return "hook_target"


def test_the_finder_hooks_right_after_execution(installers: None, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    finder_under_test = HookFinder({"DSV41_X": "1"}, (hook("good"),))
    monkeypatch.setattr(sys, "meta_path", [finder_under_test, *sys.meta_path])
    assert importlib.import_module(target).VALUE == 1
    assert CALLS == ["hook_target"]
    assert finder_under_test.find_spec("hook_target.inner", None) is None
    assert finder_under_test.find_spec("json", None) is None


def test_a_failing_hook_is_fatal_for_the_import(installers: None, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(sys, "meta_path", [HookFinder({"DSV41_X": "1"}, (hook("bad"),), said.append), *sys.meta_path])
    with pytest.raises(HookError):
        importlib.import_module(target)
    assert len(said) == 1
    assert said[0].startswith("TS-ADAPTER-INSTALL")


def test_install_is_idempotent_and_refuses_to_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    with pytest.raises(HookError, match="TS-ADAPTER-LATE"):
        finder.install({"DSV41_X": "1"}, (hook("good", "json"),))
    finder.install({}, (hook("good", "json"),))
    assert not any(isinstance(item, HookFinder) for item in sys.meta_path)
    for _ in range(2):
        finder.install({"DSV41_X": "1"}, (hook("good", "email.nothing_yet", optional=True),))
    assert sum(isinstance(item, HookFinder) for item in sys.meta_path) == 1


@pytest.mark.parametrize("module", ["email.nothing_yet", "email.mime.nothing_yet"])
def test_a_module_that_the_engine_does_not_have_is_refused_at_the_start(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv("DSV41_ENGINE_BUILD", "build 7")
    with pytest.raises(HookError, match=rf"^TS-ADAPTER-MODULE: .*build 7, adapter an_adapter.* {module};"):
        finder.install({"DSV41_X": "1"}, (hook("good", module),))
    assert not any(isinstance(item, HookFinder) for item in sys.meta_path)


def test_without_the_engine_its_hooks_are_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    finder.install({"DSV41_X": "1"}, (hook("good", "no_such_engine.models"),))
    assert not any(isinstance(item, HookFinder) for item in sys.meta_path)


def run(code: str, path: list[Path], **env: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, path)), **env}
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)


LOOK = (
    "import sys; from trispark_lab import projection as p; "
    "print(p.project.__module__, any(type(f).__name__ == 'HookFinder' for f in sys.meta_path))"
)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, "trispark_lab.projection False"),
        ({"DSV41_WO_A_W8": "1"}, "trispark_lab.projection False"),
        ({"DSV41_SOURCE": "/m"}, "trispark_lab.projection False"),
        ({"DSV41_SOURCE": "/m", "DSV41_WO_A_W8": "0"}, "trispark_lab.projection False"),
        ({"DSV41_SOURCE": "/m", "DSV41_WO_A_W8": "1"}, "trispark_hooks.lab_wo_a_w8 True"),
    ],
)
def test_a_real_interpreter(env: dict[str, str], expected: str) -> None:
    result = run(LOOK, [ROOT / "adapters", ROOT / "lab"], **env)
    assert (result.stdout.strip(), result.stderr, result.returncode) == (expected, "", 0)


ENGINE = {
    "DSV41_SOURCE": "/m",
    "DSV41_PACKED_DIR": "/engram",
    "OFFLOAD_MODE": "ram",
    "DSV41_TP_PAD": "0",
    "DSV41_DRAFT_TAU": "1",
    "DSV41_VERIFY_CAP": "0",
    "DSV41_PREFILL_EMPTY_CACHE_TOKENS": "0",
}


def test_with_every_switch_off_no_adapter_is_imported(tmp_path: Path) -> None:
    for name in {entry.module for entry in HOOKS if entry.module.startswith("sglang.")}:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    code = (
        "import importlib, sys\n"
        "from trispark_hooks.registry import HOOKS\n"
        "for name in {h.module for h in HOOKS if h.module.startswith('sglang.')}: importlib.import_module(name)\n"
        "print([m for m in sys.modules if m.startswith('trispark_adapters')], len(sys.meta_path))"
    )
    plain = run("import sys; print([], len(sys.meta_path))", [tmp_path])
    result = run(code, [ROOT / "adapters", tmp_path], **ENGINE)
    assert (result.stdout, result.stderr, result.returncode) == (plain.stdout, "", 0)


def test_damaged_adapters_end_the_interpreter(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "adapters" / "trispark_hooks", tmp_path / "trispark_hooks")
    shutil.copy(ROOT / "adapters" / "sitecustomize.py", tmp_path)
    environ = {"DSV41_SOURCE": "/m", "DSV41_WO_A_W8": "1"}
    (tmp_path / "trispark_hooks" / "lab_wo_a_w8.py").write_text("raise ValueError('damaged')\n")
    result = run(LOOK, [tmp_path, ROOT / "lab"], **environ)
    assert result.returncode == finder.EXIT_FAILED
    assert result.stderr.startswith("TS-ADAPTER-INSTALL: ")
    (tmp_path / "trispark_hooks" / "needs.json").write_text("{")
    result = run(LOOK, [tmp_path, ROOT / "lab"], **environ)
    assert (result.returncode, result.stderr[:18]) == (finder.EXIT_FAILED, "TS-ADAPTER-NEEDS: ")
    (tmp_path / "trispark_hooks" / "registry.py").write_text("x = (\n")
    result = run("print('alive')", [tmp_path], **environ)
    assert (result.returncode, result.stdout) == (70, "")
    assert result.stderr.startswith("TS-ADAPTER-START: ")


@pytest.mark.parametrize("entry", HOOKS, ids=lambda entry: f"{entry.module}-{entry.installer}")
def test_registry_names_existing_installers(entry: Hook) -> None:
    name, _, function = entry.installer.partition(":")
    tree = ast.parse((ROOT / "adapters" / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    assert len(found) == 1
    required = found[0].args.args[: len(found[0].args.args) - len(found[0].args.defaults)]
    assert [argument.arg for argument in required] == ["module"]


def test_the_order_within_a_module_is_that_of_the_field() -> None:
    """A later hook wraps an earlier one; see the head of registry.py for why it counts."""
    order = {}
    for entry in HOOKS:
        order.setdefault(entry.module.rsplit(".", 1)[-1], []).append(
            f"{entry.adapter}.{entry.installer.partition(':')[2]}"
        )
    assert order["dspark_verify"] == ["folded_fence.install", "verify_cap.install_verify"]


def test_every_adapter_of_the_engine_says_what_it_needs() -> None:
    engine = [entry for entry in HOOKS if entry.module.startswith("sglang.")]
    needed = {
        name: {
            need["module"]
            for need in [
                *entry["needs"],
                *(each for groups in entry.get("any", ()) for group in groups for each in group),
            ]
        }
        for name, entry in needs.adapters().items()
    }
    assert {entry.adapter for entry in engine} == set(needed)
    for entry in engine:
        assert entry.optional or entry.module in needed[entry.adapter], entry.installer
