"""How an installer looks symbols up and replaces them."""

import contextlib
import functools
from types import ModuleType
from typing import Any

import pytest

from trispark_hooks import binding, needs
from trispark_hooks.switches import HookError


class Base:
    def inherited(self, x: int) -> str:
        return f"base {x}"


class Layer(Base):
    def forward(self, x: int, *, scale: int = 1) -> int:
        return x * scale

    @classmethod
    def execute(cls, x: int) -> str:
        return f"{cls.__name__} {x}"

    @staticmethod
    def twice(x: int) -> int:
        return 2 * x


@pytest.fixture
def module() -> ModuleType:
    made = ModuleType("engine.layers")
    made.Layer = type("Layer", (Base,), dict(vars(Layer)))  # type: ignore[attr-defined]
    made.double = lambda x: 2 * x  # type: ignore[attr-defined]
    return made


def counting(calls: list[Any]) -> Any:
    def wrap(original: Any) -> Any:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            calls.append((args[1:], kwargs))
            return original(*args, **kwargs)

        return replacement

    return wrap


def test_a_symbol_below_a_module(module: ModuleType) -> None:
    assert binding.symbol(module, "Layer.forward") is module.Layer.forward
    assert binding.symbol(module.Layer, "inherited") is Base.inherited


@pytest.mark.parametrize(("path", "missing"), [("Gone", "Gone"), ("Layer.gone", "gone"), ("Gone.forward", "Gone")])
def test_a_missing_symbol_names_build_module_and_symbol(
    module: ModuleType, path: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSV41_ENGINE_BUILD", "build 7")
    with pytest.raises(HookError) as caught:
        binding.symbol(module, path)
    message = str(caught.value)
    assert message.startswith("TS-ADAPTER-SYMBOL: ")
    for part in ("build 7", "engine.layers" if missing != "gone" else "Layer", f"expected: {path};", f"no {missing};"):
        assert part in message
    assert "\n" not in message


def test_the_build_is_what_the_image_says_else_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV41_ENGINE_BUILD", "da64c5cbb")
    assert binding.build() == "da64c5cbb"
    monkeypatch.delenv("DSV41_ENGINE_BUILD")
    monkeypatch.setattr(binding.metadata, "version", lambda name: {"sglang": "0.5.21"}[name])
    assert binding.build() == "sglang 0.5.21"

    def absent(name: str) -> str:
        raise binding.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(binding.metadata, "version", absent)
    assert binding.build() == "sglang of unknown version"


def test_parameters_are_those_of_the_innermost_function(module: ModuleType) -> None:
    @functools.wraps(Layer.forward)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return None

    binding.require_parameters(wrapped, "x", "scale")
    binding.require_parameters(object())  # type: ignore[arg-type]  # nothing asked
    with pytest.raises(
        HookError, match=r"^TS-ADAPTER-SIGNATURE: .*Layer\.forward\] expected: x, y, z; observed: no y, z;"
    ):
        binding.require_parameters(Layer.forward, "x", "y", "z")


def test_a_replacement_stands_in_front_once_for_each_adapter(module: ModuleType) -> None:
    original = module.Layer.forward
    calls: list[Any] = []
    for _ in range(2):
        binding.replace(module, "Layer.forward", "first", counting(calls))
    assert module.Layer().forward(3, scale=2) == 6
    assert calls == [((3,), {"scale": 2})]
    binding.replace(module, "Layer.forward", "second", counting(calls))
    assert module.Layer().forward(3) == 3
    assert len(calls) == 3  # the second wraps the first
    assert getattr(module.Layer.forward, binding.MARK) == ("first", "second")
    binding.replace(module, "Layer.forward", "first", counting(calls))
    assert getattr(module.Layer.forward, binding.MARK) == ("first", "second")
    binding.require_parameters(module.Layer.forward, "x", "scale")  # later adapters still see the engine's own
    assert original(module.Layer(), 4) == 4


def test_a_decorated_replacement_still_shows_the_engines_parameters(module: ModuleType) -> None:
    def wrap(original: Any) -> Any:
        @contextlib.contextmanager
        def replacement(*args: Any, **kwargs: Any) -> Any:
            yield original(*args, **kwargs)

        return replacement

    binding.replace(module, "double", "an_adapter", wrap)
    binding.require_parameters(module.double, "x")


def test_class_and_static_methods_stay_what_they_are(module: ModuleType) -> None:
    seen: list[Any] = []

    def wrap(original: Any) -> Any:
        def replacement(*args: Any) -> Any:
            seen.append(args)
            return original(*args)

        return replacement

    for name in ("Layer.execute", "Layer.twice"):
        binding.replace(module, name, "an_adapter", wrap)
    assert module.Layer.execute(1) == "Layer 1"
    assert module.Layer.twice(2) == 4
    assert seen == [(module.Layer, 1), (2,)]
    binding.replace(module, "Layer.execute", "an_adapter", wrap)
    assert (module.Layer.execute(1), len(seen)) == ("Layer 1", 3)


def test_what_is_inherited_is_replaced_in_the_class_alone(module: ModuleType) -> None:
    binding.replace(
        module, "Layer.inherited", "an_adapter", lambda original: lambda self, x: f"own {original(self, x)}"
    )
    assert module.Layer().inherited(1) == "own base 1"
    assert Base().inherited(1) == "base 1"


def test_a_function_of_the_module(module: ModuleType) -> None:
    binding.replace(module, "double", "an_adapter", lambda original: lambda x: original(x) + 1)
    assert module.double(2) == 5
    with pytest.raises(HookError, match="TS-ADAPTER-SYMBOL"):
        binding.replace(module, "triple", "an_adapter", lambda original: original)


LAYER = {"module": "engine.layers", "symbol": "Layer.forward", "parameters": ["x"]}
LOST = {"module": "engine.layers", "symbol": "Layer.gone"}
OTHER = {"module": "engine.heads", "symbol": "Gone"}
WRONG = {"module": "engine.layers", "symbol": "Layer.forward", "parameters": ["y"]}


@pytest.mark.parametrize(
    ("entry", "refused"),
    [
        ({"needs": [LAYER]}, None),
        ({"needs": [LAYER, OTHER]}, None),  # another module is judged when it is there
        ({"needs": [LAYER, LOST]}, "SYMBOL"),
        ({"needs": [WRONG]}, "SIGNATURE"),
        ({"needs": [LOST], "native": [LAYER]}, None),
        ({"needs": [LOST], "native": [WRONG]}, "SYMBOL"),
        ({"needs": [LOST], "native": [OTHER]}, "SYMBOL"),
        ({"needs": [], "any": [[[LOST], [LAYER]]]}, None),
        ({"needs": [], "any": [[[LOST], [WRONG]]]}, "SYMBOL"),
        ({"needs": [], "any": [[[LAYER]], [[WRONG]]]}, "SIGNATURE"),
    ],
)
def test_needs(module: ModuleType, monkeypatch: pytest.MonkeyPatch, entry: dict[str, Any], refused: str | None) -> None:
    monkeypatch.setattr(needs, "adapters", lambda: {"an_adapter": entry})
    if refused is None:
        needs.require(module, "an_adapter")
        return
    with pytest.raises(HookError, match=f"TS-ADAPTER-{refused}"):
        needs.require(module, "an_adapter")
    needs.require(module, "another_adapter")
