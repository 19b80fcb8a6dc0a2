"""The short quality set of a boot, from what its generation holds: requests and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trispark.gate_result import GateResult
from trispark.quality.evaluate import judge_short
from trispark.quality.model import EngineQuality
from trispark.quality.questions import Asker, Question, requests


def _questions(resolved: Mapping[str, Any]) -> tuple[EngineQuality, tuple[Question, ...]] | None:
    """None for a generation that was stored before there was a set."""
    kept = resolved["gates"].get("quality")
    if kept is None:
        return None
    quality = EngineQuality.of(kept["set"])
    asker = Asker(quality, resolved["gates"]["canary"]["model"], int(resolved["settings"]["MAX_RUNNING_REQUESTS"]))
    return quality, asker.short(bool(kept["repeat"]))


def short_requests(resolved: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For the agent's verb `request-batch` on the head; empty where the generation has no set."""
    found = _questions(resolved)
    if found is None:
        return []
    url = str(resolved["gates"]["canary"]["url"])
    return requests(found[1], url.removesuffix("/v1/chat/completions"), found[0].timeout_s)


def short_results(resolved: Mapping[str, Any], raw: Sequence[Mapping[str, Any]]) -> list[GateResult]:
    """Judged answers to `short_requests`, in its order."""
    found = _questions(resolved)
    if found is None:
        return []
    bands = [(float(low), float(high)) for low, high in resolved["gates"].get("accept_bands", [])]
    return judge_short(*found, raw, bands)
