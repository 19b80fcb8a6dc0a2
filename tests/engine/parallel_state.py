"""A rank of the engine without process groups: what its code reads of the parallel context is given by a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

SIZES = ("tp_size", "attn_tp_size", "attn_dp_size", "attn_cp_size", "moe_ep_size", "moe_tp_size", "pp_size", "dp_size")


class Parallel:
    """All sizes 1, all ranks 0, all switches off, unless said otherwise; no groups."""

    def __init__(self, **given: Any) -> None:
        self.given = {**dict.fromkeys(SIZES, 1), **given}

    def read(self, name: str) -> Any:
        if name in self.given:
            return self.given[name]
        return 0 if name.endswith("_rank") else None


def pretend(monkeypatch: pytest.MonkeyPatch, **given: Any) -> Callable[..., None]:
    """Until the test ends the engine reads `given`; returns a function that changes some of it."""
    from sglang.srt.runtime_context import ParallelContext

    state = Parallel(**given)
    monkeypatch.setattr(ParallelContext, "_read", lambda self, name: state.read(name))
    return lambda **other: state.given.update(other)
