"""Settings of the small adapters, read without an engine."""

from __future__ import annotations

import pytest

from trispark_adapters.mxfp8_routing import BACKENDS, chosen
from trispark_adapters.prefill_empty_cache import DEFAULT, threshold
from trispark_hooks.registry import HookError


@pytest.mark.parametrize(("text", "tokens"), [("", DEFAULT), ("0", 0), ("8192", 8192), ("1048576", 1 << 20)])
def test_length_from_which_the_allocator_is_emptied(text: str, tokens: int) -> None:
    assert threshold(text) == tokens


@pytest.mark.parametrize("text", ["-1", "1048577", "8k", "1e3", " 1", "\u0661"])
def test_a_length_is_never_guessed(text: str) -> None:
    with pytest.raises(HookError, match="TS-ADAPTER-EMPTY-CACHE"):
        threshold(text)


@pytest.mark.parametrize("name", BACKENDS)
def test_known_kernels(name: str) -> None:
    assert chosen(name) == name


@pytest.mark.parametrize("name", ["", "B12X", "auto", "cute-dsl", "b12x "])
def test_a_kernel_is_never_guessed(name: str) -> None:
    with pytest.raises(HookError, match="TS-ADAPTER-MXFP8:"):
        chosen(name)
