import tracemalloc
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trispark.logparse import lines_matching
from trispark_hooks.lab_wo_a_w8 import Adapter, Modes, Twin, build_twin
from trispark_lab import e4m3

ROOT = Path(__file__).resolve().parents[3]


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
    def __init__(self, mid: bool = False, drop: bool = False) -> None:
        self.lines: list[str] = []
        self.kwargs: list[dict[str, Any]] = []
        self.prepared = 0
        calls = {"dense": 0}

        def prepare(weights: Sequence[np.ndarray]) -> list[np.ndarray]:
            self.prepared += 1
            return list(weights)

        def project(inputs: np.ndarray, weight: np.ndarray, **kwargs: Any) -> np.ndarray:
            calls["dense"] += 1
            self.kwargs.append(kwargs)
            return np.asarray(np.einsum("tgi,goi->tgo", inputs, weight))

        module: Any = SimpleNamespace(CALLS=calls, prepare=prepare, project=project)
        self.calls = calls
        self.adapter = Adapter(module, self.lines.append, Modes(mid, drop))


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


def scaled_weight(seed: int, spread: int) -> np.ndarray:
    """[2, 64, 96] with blocks of different powers of two, so that rows of a group need several runs; of those that
    are added up, the powers differ by few, so that sums in float32 are exact."""
    generator = np.random.default_rng(seed)
    codes = generator.integers(-15, 16, (2, 2, 32, 3, 32)).astype(np.float32)
    powers = generator.integers(-min(spread, 3), min(spread, 3) + 1, (2, 2, 1, 3, 1))
    powers += np.array([-1, 1]).reshape(1, 2, 1, 1, 1) * max(spread - 3, 0)
    return np.ldexp(codes, powers).astype(np.float32).reshape(2, 64, 96)


@pytest.mark.parametrize("spread", [0, 3, 20, 60])
@pytest.mark.parametrize("rows", [2, 8, 33])
def test_the_quick_product_has_the_bits_of_the_slow_one(spread: int, rows: int) -> None:
    twin = build_twin(scaled_weight(spread, spread))
    assert twin is not None
    assert (twin.runs is None) is (spread == 60)
    if spread == 3:
        assert twin.runs is not None
        assert max(map(len, twin.runs)) == 2
    inputs = np.random.default_rng(rows).integers(-120, 121, (rows, 2, 96)).astype(np.float32)
    weight = twin.dequantise().astype(np.float64)
    assert np.array_equal(twin.project(inputs), np.einsum("tgi,goi->tgo", inputs.astype(np.float64), weight))


def test_every_code_is_multiplied_exactly() -> None:
    codes = np.arange(256, dtype=np.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    twin = Twin(codes.reshape(1, 32, 8).repeat(4, axis=2), np.full((1, 1, 1), 127, dtype=np.uint8))
    inputs = np.zeros((32, 1, 32), dtype=np.float32)
    inputs[np.arange(32), 0, np.arange(32)] = 3.0
    assert np.array_equal(twin.project(inputs)[:, 0].T, 3.0 * twin.dequantise()[0])


@pytest.mark.parametrize(
    ("rows", "verify", "path"),
    [
        (1, True, "dense"),
        (8, True, "twin"),
        (8, False, "twin"),
        (9, True, "mid"),
        (9, False, "dense"),
        (192, True, "mid"),
        (193, True, "dense"),
    ],
)
@pytest.mark.parametrize("drop", [False, True])
def test_medium_rows_of_verify_forwards_alone(rows: int, verify: bool, path: str, drop: bool) -> None:
    harness = Harness(mid=True, drop=drop)
    weight = small_weight(7)
    (held,) = harness.adapter.prepare([weight])
    assert harness.lines[1] == "[wo_a_w8] mid path armed: 9..192 rows of verify forwards"
    inputs = np.random.default_rng(rows).integers(-9, 10, (rows, 2, 96)).astype(np.float32)
    result = harness.adapter.project(inputs, held, is_target_verify=verify)
    assert np.array_equal(result, np.einsum("tgi,goi->tgo", inputs, weight))
    expected = {"dense": 0, "twin": 0, "mid": 0, **({"dequantised": 0} if drop else {})}
    expected |= {path: 1, **({"dequantised": 1} if drop and path == "dense" else {})}
    assert harness.calls == expected
    tail = f" dequantised={expected['dequantised']}" if drop else ""
    counts = f"twin={expected['twin']} dense={expected['dense']} mid={expected['mid']}"
    assert harness.adapter.lines(False) == [f"[wo_a_w8] calls {counts}{tail}"]


@pytest.mark.parametrize(
    ("environ", "modes"),
    [
        ({}, Modes()),
        ({"DSV41_WO_A_W8_MID": "0", "DSV41_WO_A_W8_DROP": "0"}, Modes()),
        ({"DSV41_WO_A_W8_MID": "1"}, Modes(mid=True)),
        ({"DSV41_WO_A_W8_DROP": "1"}, Modes(drop=True)),
    ],
)
def test_modes_are_the_environment(environ: dict[str, str], modes: Modes) -> None:
    assert Modes.of(environ) == modes


def test_drop_frees_the_memory_of_exact_weights_alone() -> None:
    harness = Harness(drop=True)
    inexact = small_weight(9)
    inexact[0, 0, 0] = 0.3
    tracemalloc.start()
    try:
        weights = [np.random.default_rng(8).integers(-7, 8, (2, 512, 1024)).astype(np.float32), inexact]
        size = weights[0].nbytes
        alive = weakref.ref(weights[0])
        before = tracemalloc.get_traced_memory()[0]
        weights = harness.adapter.prepare(weights)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert alive() is None, "the float32 array itself is gone"
    assert before - after > 0.7 * size, "what is left is the twin, a quarter"
    assert weights[0].shape == (2, 512, 1024)
    assert weights[0].strides == (0, 0, 0)
    assert weights[1] is inexact
    assert harness.lines == [
        "[wo_a_w8] fp8 twins for 1 wo_a weights, 1 left on float32",
        f"[wo_a_w8] released the float32 copy of 1 wo_a weights ({size / 1e6:.1f} MB); 1 kept",
    ]


def test_other_shapes_of_a_released_weight_are_rebuilt_afresh() -> None:
    harness = Harness(drop=True)
    weight = small_weight(10)
    (held,) = harness.adapter.prepare([weight])
    wide = np.ones((4, 2, 96))  # float64: no twin path
    for _ in range(2):
        assert np.array_equal(harness.adapter.project(wide, held), np.einsum("tgi,goi->tgo", wide, weight))
    assert harness.calls == {"dense": 2, "twin": 0, "dequantised": 2}


@pytest.mark.parametrize(
    ("name", "line", "found"),
    [
        ("wo_a_mid.calls", "[wo_a_w8] calls twin=1 dense=2 mid=3", True),
        ("wo_a_mid.calls", "[wo_a_w8] calls twin=1 dense=2 mid=0 dequantised=1", False),
        ("wo_a_drop.released", "[wo_a_w8] released the float32 copy of 2 wo_a weights (6.3 MB); 0 kept", True),
        ("wo_a_drop.released", "[wo_a_w8] released the float32 copy of 2 wo_a weights (0.0 MB); 0 kept", False),
        ("wo_a_drop.released", "[wo_a_w8] released the bf16 copy of 40 wo_a weights (1280 MB); 0 kept (...)", True),
        ("wo_a_drop.released", "[wo_a_w8] released the float32 copy of 1 wo_a weights (3.1 MB); 1 kept", False),
        ("wo_a_drop.kept", "[wo_a_w8] released the float32 copy of 1 wo_a weights (3.1 MB); 1 kept", True),
    ],
)
def test_evidence_reads_the_lines(name: str, line: str, found: bool) -> None:
    document = yaml.safe_load((ROOT / "experiments/evidence.yml").read_text(encoding="utf-8"))
    assert bool(lines_matching(document["evidence"][name]["pattern"], line)) is found
