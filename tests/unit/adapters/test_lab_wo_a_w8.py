from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark_hooks.lab_wo_a_w8 import Adapter, build_twin
from trispark_lab import e4m3


def exact_weight(seed: int, low: int = 100, high: int = 150) -> np.ndarray:
    """[2, 64, 96] of e4m3 codes times power-of-two block scales."""
    generator = np.random.default_rng(seed)
    codes = generator.integers(0, 256, (128, 96)).astype(np.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    scales = generator.integers(low, high, (4, 3)).astype(np.uint8)
    return e4m3.dequantise(codes, scales).reshape(2, 64, 96)


def bits(values: np.ndarray) -> list[int]:
    return np.ascontiguousarray(values).view(np.uint32).reshape(-1).tolist()


@given(st.integers(0, 2**32))
def test_an_exact_weight_has_an_exact_twin(seed: int) -> None:
    weight = exact_weight(seed)
    twin = build_twin(weight)
    # A block that spans more than e4m3 can hold after rescaling may be left; it must never be wrong.
    assert twin is None or bits(twin.dequantise()) == bits(weight)


def test_the_checkpoints_kind_of_weight_has_a_twin() -> None:
    weight = np.zeros((1, 32, 96), dtype=np.float32)
    for index, size in enumerate((1, 4, 16)):
        weight[0, np.arange(32), 32 * index + np.arange(32)] = size
        weight[0, 0, 32 * index] = -size
    twin = build_twin(weight)
    assert twin is not None
    assert bits(twin.dequantise()) == bits(weight)


def test_the_exponent_is_the_fields() -> None:
    weight = np.zeros((1, 32, 32), dtype=np.float32)
    for amax, exponent in ((448.0, 0), (449.0 - 1 + 32, 1), (224.0, -1), (0.0, -127)):
        weight[0, 0, 0] = amax
        twin = build_twin(weight)
        assert twin is not None
        assert twin.exponents[0, 0, 0] == exponent + 127, amax


@pytest.mark.parametrize("value", [1.0 + 2.0**-10, np.pi, np.nan, np.inf, 2.0**-140])
def test_an_inexact_weight_is_left(value: float) -> None:
    weight = exact_weight(1, 126, 128)
    weight[1, 5, 7] = value
    assert build_twin(weight) is None


@pytest.mark.parametrize("shape", [(32, 32), (1, 33, 32), (1, 32, 40)])
def test_other_shapes_are_left(shape: tuple[int, ...]) -> None:
    assert build_twin(np.zeros(shape, dtype=np.float32)) is None


class Harness:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.kwargs: list[dict[str, Any]] = []
        self.prepared = 0
        calls = {"dense": 0}

        def prepare(weights: Sequence[np.ndarray]) -> None:
            self.prepared += 1

        def project(inputs: np.ndarray, weight: np.ndarray, **kwargs: Any) -> np.ndarray:
            calls["dense"] += 1
            self.kwargs.append(kwargs)
            return np.asarray(np.einsum("tgi,goi->tgo", inputs, weight))

        module: Any = SimpleNamespace(CALLS=calls, prepare=prepare, project=project)
        self.calls = calls
        self.adapter = Adapter(module, self.lines.append)


@pytest.fixture
def harness() -> Harness:
    return Harness()


def small_weight(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-7, 8, (2, 64, 96)).astype(np.float32)


def test_taken_and_left_are_counted(harness: Harness) -> None:
    inexact = small_weight(2)
    inexact[0, 0, 0] = 0.3
    harness.adapter.prepare([small_weight(1), np.zeros((2, 64, 96), dtype=np.float32), inexact])
    assert harness.prepared == 1
    assert harness.lines == ["[wo_a_w8] fp8 twins for 2 wo_a weights, 1 left on float32"]


@pytest.mark.parametrize(("rows", "path"), [(1, "dense"), (2, "twin"), (5, "twin"), (8, "twin"), (9, "dense")])
def test_path_by_rows_and_equal_results(harness: Harness, rows: int, path: str) -> None:
    weight = small_weight(3)
    harness.adapter.prepare([weight])
    inputs = np.random.default_rng(rows).integers(-9, 10, (rows, 2, 96)).astype(np.float32)
    result = harness.adapter.project(inputs, weight)
    assert harness.calls == {"dense": 0, "twin": 0, path: 1}
    assert np.array_equal(result, np.einsum("tgi,goi->tgo", inputs, weight))


def test_a_left_or_unknown_weight_takes_the_dense_path_with_all_arguments(harness: Harness) -> None:
    weight = small_weight(4)
    harness.adapter.project(np.zeros((4, 2, 96), dtype=np.float32), weight, is_target_verify=True)
    assert harness.calls == {"dense": 1, "twin": 0}
    assert harness.kwargs == [{"is_target_verify": True}]


def test_lines_are_deltas(harness: Harness) -> None:
    weight = small_weight(5)
    harness.adapter.prepare([weight])
    inputs = np.zeros((4, 2, 96), dtype=np.float32)
    assert harness.adapter.lines(False) == []
    harness.adapter.project(inputs, weight)
    harness.adapter.project(inputs[:1], weight)
    assert harness.adapter.lines(False) == ["[wo_a_w8] calls twin=1 dense=1"]
    assert harness.adapter.lines(False) == []
    assert harness.adapter.lines(True) == ["[wo_a_w8] calls twin=0 dense=0"]


def test_the_engines_own_projection_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    from trispark_lab import projection

    original: Callable[..., np.ndarray] = projection.project
    monkeypatch.setattr(projection, "CALLS", {"dense": 0})
    module: Any = SimpleNamespace(CALLS=projection.CALLS, prepare=projection.prepare, project=original)
    adapter = Adapter(module, lambda line: None)
    weight = small_weight(6)
    adapter.prepare([weight])
    inputs = np.random.default_rng(0).integers(-120, 121, (4, 2, 96)).astype(np.float32)
    assert bits(adapter.project(inputs, weight)) == bits(original(inputs, weight))
    assert projection.CALLS == {"dense": 1, "twin": 1}
