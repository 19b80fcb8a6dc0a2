"""Greedy text is the same under every switch that only changes where bytes come from or how a product is made."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TOKENS = 6


def shipped_prompts() -> list[str]:
    """The shipped prompts of every workload, and one text that the corpus does not know."""
    shipped = json.loads((Path(__file__).resolve().parents[3] / "lab/corpus/prompts.json").read_text(encoding="utf-8"))
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
