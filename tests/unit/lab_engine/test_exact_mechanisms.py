"""Greedy text is the same under every switch that only changes where bytes come from or how a product is made."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from trispark_lab import engram, projection

ROOT = Path(__file__).resolve().parents[3]
TOKENS = 6


def shipped_prompts() -> list[str]:
    """The shipped prompts of every workload, and one text that the corpus does not know."""
    shipped = json.loads((ROOT / "lab/corpus/prompts.json").read_text(encoding="utf-8"))
    return [prompt for name in sorted(shipped) for prompt in shipped[name]] + ["Nobody wrote this, \u00fcnd \u20ac?"]


@pytest.fixture(scope="module")
def expected(generator: Any) -> list[str]:
    texts: list[str] = generator.generate(shipped_prompts(), TOKENS, 3)
    return texts


@pytest.mark.parametrize(
    ("gib", "ways", "is_packed"), [("0.00001", "1", True), ("0.001", "4", False), ("0.01", "16", True)]
)
def test_row_cache(
    make_generator: Callable[..., Any],
    packed: Path,
    tmp_path: Path,
    expected: list[str],
    gib: str,
    ways: str,
    is_packed: bool,
) -> None:
    cached = make_generator(packed if is_packed else tmp_path, DSV41_CACHE_GIB=gib, DSV41_CACHE_WAYS=ways)
    assert cached.generate(shipped_prompts(), TOKENS, 3) == expected
    for layer in cached.model.layers:
        counts = layer.store.counts
        assert 0 < counts.hits < counts.lookups
        assert counts.reads == (1 if is_packed else 2) * (counts.lookups - counts.hits)


@pytest.fixture
def adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "adapters"))


@pytest.mark.parametrize(("check", "gib"), [(False, "0"), (True, "0"), (False, "0.001")])
def test_engram_prefetch(
    adapters: None,
    monkeypatch: pytest.MonkeyPatch,
    make_generator: Callable[..., Any],
    packed: Path,
    expected: list[str],
    check: bool,
    gib: str,
) -> None:
    from trispark_hooks.lab_engram_prefetch import Prefetch

    said: list[str] = []
    prefetch = Prefetch(cast(Any, engram), check, said.append)
    for name in ("attach", "ids_known", "gather"):
        monkeypatch.setattr(engram, name, getattr(prefetch, name))
    ahead = make_generator(packed, DSV41_CACHE_GIB=gib)
    assert ahead.generate(shipped_prompts(), TOKENS, 3) == expected
    assert len(said) == 1
    assert prefetch.served > 0
    assert prefetch.synchronous == 0
    assert list(prefetch.differing.values()) == ([0, 0] if check else [-1, -1])
    counts = ahead.model.layers[0].store.counts
    assert counts.reads == counts.lookups - counts.hits


@pytest.mark.parametrize(("mid", "drop"), [(False, False), (True, False), (False, True), (True, True)])
def test_wo_a_modes(
    adapters: None,
    monkeypatch: pytest.MonkeyPatch,
    make_generator: Callable[..., Any],
    packed: Path,
    expected: list[str],
    mid: bool,
    drop: bool,
) -> None:
    from trispark_hooks.lab_wo_a_w8 import Adapter, Modes

    said: list[str] = []
    monkeypatch.setattr(projection, "CALLS", {"dense": 0})
    adapter = Adapter(cast(Any, projection), said.append, Modes(mid, drop))
    monkeypatch.setattr(projection, "prepare", adapter.prepare)
    monkeypatch.setattr(projection, "project", adapter.project)
    twins = make_generator(packed)
    strides = {layer.wo_a.strides for layer in twins.model.layers}
    assert (strides == {(0, 0, 0)}) is drop
    prompts = shipped_prompts()
    assert twins.generate(prompts[:1], TOKENS, 3) == expected[:1]  # one request: 4 rows
    assert twins.generate(prompts, TOKENS, 3) == expected  # four at a time: 16 rows
    calls = projection.CALLS
    assert calls["twin"] > 0
    assert calls["dense"] > 0
    assert (calls.get("mid", 0) > 0) is mid
    assert calls.get("dequantised", 0) == (calls["dense"] if drop else 0)
