"""Entry and exit criteria of the stages: what the records say, shown and never in the way."""

from __future__ import annotations

from typing import Any

import pytest

from trispark.catalog import STAGES, Catalog
from trispark.stages import entry, exit_of

BASELINE = "g" + "0" * 16


def boot(
    state: str = "valid", packed: bool | None = True, generation: str = BASELINE, bench: Any = "x"
) -> dict[str, Any]:
    layers = [{"layer": layer, "packed": packed} for layer in (1, 14)] if packed is not None else []
    return {
        "kind": "boot",
        "boot_id": "b1",
        "resolved": {"generation": generation},
        "bench": bench,
        "outcome": {"state": state},
        "observed": {"ranks": [{"engram": layers} for _ in range(3)]},
    }


def trial(feature: str, verdict: str = "INCONCLUSIVE") -> dict[str, Any]:
    return {"kind": "trial", "requested": {"feature": feature}, "outcome": {"verdict": verdict}}


@pytest.mark.parametrize(
    ("records", "met", "observed"),
    [
        ([], False, f"no measured boot of {BASELINE}"),
        ([boot()], True, "b1 valid"),
        ([boot(), boot("invalid")], False, "b1 invalid"),
        ([boot("failed"), boot()], True, "b1 valid"),
        ([boot(packed=False)], False, "b1 valid, not packed on every rank"),
        ([boot(packed=None)], False, "b1 valid, not packed on every rank"),
        ([boot(generation="g1")], False, f"no measured boot of {BASELINE}"),
        ([boot(bench=None)], False, f"no measured boot of {BASELINE}"),
        ([trial("wo_a")], False, f"no measured boot of {BASELINE}"),
    ],
)
def test_the_baseline_of_now_was_measured_and_is_packed(
    catalog: Catalog, records: list[Any], met: bool, observed: str
) -> None:
    (judged,) = exit_of(catalog, "stage_a", BASELINE, records)
    assert (judged.met, judged.observed) == (met, observed)
    assert entry(catalog, "b", BASELINE, records)[0].met is met


def test_a_stage_has_ended_when_all_that_can_be_tried_has_a_verdict(catalog: Catalog) -> None:
    names = [name for name in catalog.features_of("c") if catalog.features[name].sets]
    (judged,) = exit_of(catalog, "c", BASELINE, [trial("wo_a", "KEEP")])
    assert not judged.met
    assert "wo_a KEEP" in judged.observed
    assert "engram_prefetch not tried" in judged.observed
    untried = [name for name in catalog.features_of("c") if f"{name} not tried" in judged.observed]
    assert judged.line() == f"stage c goes on: not tried yet: {', '.join(untried)}"
    (judged,) = exit_of(catalog, "c", BASELINE, [trial(name) for name in names])
    assert judged.met
    assert judged.line().endswith(")")


def test_every_stage_has_criteria_that_its_records_can_meet(catalog: Catalog) -> None:
    for stage in STAGES:
        assert exit_of(catalog, stage, BASELINE, [])
        assert bool(entry(catalog, stage, BASELINE, [])) == catalog.stages[stage].trial
