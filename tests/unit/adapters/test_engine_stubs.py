"""The stand-ins that let the engine's modules be imported on a plain GPU machine."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[2] / "gpu/engine_stubs.py"


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("engine_stubs", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)
    yield module
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_absent_packages_alone_are_answered_for(stubs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stubs, "KERNELS", ("absent_kernels", "json"))
    monkeypatch.setattr(stubs, "FRONT_END", ())
    assert stubs.install() == ["absent_kernels"]
    assert stubs.install() == []
    assert importlib.import_module("absent_kernels.ops.deep").__name__ == "absent_kernels.ops.deep"
    assert importlib.import_module("json").dumps([1]) == "[1]"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("absent_otherwise")


def test_what_is_asked_of_them_does_nothing(stubs: Any) -> None:
    package = stubs.Stub("absent_kernels")

    class Derived(package.Base, total=False):
        field = package.Field(..., default=1)

    @package.registered("name", [1])
    def function() -> int:
        return 5

    assert function() == 5
    assert isinstance(Derived(1, two=2), Derived)
    assert package.Outer.Inner[int].CONSTANT is not None
    assert list(package.Names) == []
    assert package.Context().option("x", 1) is not None
    with pytest.raises(AttributeError):
        _ = package.__wrapped__


def test_a_stand_in_for_the_softmax_is_taken_away(stubs: Any) -> None:
    module, real = ModuleType("accept"), ModuleType("accept")
    module._flashinfer_softmax = stubs.Stub("flashinfer.sampling").softmax  # type: ignore[attr-defined]
    real._flashinfer_softmax = len  # type: ignore[attr-defined]
    for each in (module, real):
        stubs.forget_softmax(each)
    assert module._flashinfer_softmax is None
    assert real._flashinfer_softmax is len
