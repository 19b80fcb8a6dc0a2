import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from trispark_hooks import finder, registry
from trispark_hooks.finder import HookFinder, apply_hooks
from trispark_hooks.registry import HOOKS, Hook, HookError, hooks_of

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


def hook(function: str, module: str = "hook_target") -> Hook:
    return Hook(module, f"hook_test_installers:{function}", "DSV41_X")


@pytest.mark.parametrize(("value", "enabled"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_switch(value: str | None, enabled: bool) -> None:
    assert hook("good").enabled({} if value is None else {"DSV41_X": value}) is enabled


@pytest.mark.parametrize("value", ["no", "off", "true", "2", " 1"])
def test_a_switch_is_never_guessed(value: str) -> None:
    with pytest.raises(HookError, match="TS-ADAPTER-SWITCH"):
        hook("good").enabled({"DSV41_X": value})


def test_an_unregistered_module_is_an_error() -> None:
    with pytest.raises(HookError, match="TS-ADAPTER-UNKNOWN"):
        hooks_of("trispark_lab.model")
    assert hooks_of("trispark_lab.projection") + hooks_of("trispark_lab.engram") == HOOKS


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
    for _ in range(2):
        finder.install({}, (hook("good", "json"),))
    assert sum(isinstance(item, HookFinder) for item in sys.meta_path) == 1


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
        ({"DSV41_SOURCE": "/m"}, "trispark_lab.projection True"),
        ({"DSV41_SOURCE": "/m", "DSV41_WO_A_W8": "0"}, "trispark_lab.projection True"),
        ({"DSV41_SOURCE": "/m", "DSV41_WO_A_W8": "1"}, "trispark_hooks.lab_wo_a_w8 True"),
    ],
)
def test_a_real_interpreter(env: dict[str, str], expected: str) -> None:
    result = run(LOOK, [ROOT / "adapters", ROOT / "lab"], **env)
    assert (result.stdout.strip(), result.stderr, result.returncode) == (expected, "", 0)


def test_damaged_adapters_end_the_interpreter(tmp_path: Path) -> None:
    for source in (ROOT / "adapters").rglob("*.py"):
        copy = tmp_path / source.relative_to(ROOT / "adapters")
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(source.read_text())
    environ = {"DSV41_SOURCE": "/m", "DSV41_WO_A_W8": "1"}
    (tmp_path / "trispark_hooks" / "lab_wo_a_w8.py").write_text("raise ValueError('damaged')\n")
    result = run(LOOK, [tmp_path, ROOT / "lab"], **environ)
    assert result.returncode == finder.EXIT_FAILED
    assert result.stderr.startswith("TS-ADAPTER-INSTALL: ")
    (tmp_path / "trispark_hooks" / "registry.py").write_text("x = (\n")
    result = run("print('alive')", [tmp_path], **environ)
    assert (result.returncode, result.stdout) == (70, "")
    assert result.stderr.startswith("TS-ADAPTER-START: ")


def test_registry_names_existing_installers() -> None:
    for entry in registry.HOOKS:
        name, _, function = entry.installer.partition(":")
        assert callable(getattr(__import__(name, fromlist=[function]), function))
