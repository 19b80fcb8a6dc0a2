"""How much equal boots of a site differ: measured from the records of one generation, kept on the controller.

Plans read it (`.trispark/<site>/noise.json`), so that the floor below which no gain is kept is part of a plan and of
its id. It changes only when a person measures it anew, never by a boot.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from trispark.canonical import canonical_sha256
from trispark.decision_rules import better
from trispark.errors import TrisparkError
from trispark.plainyaml import Strict

FEWEST: Final = 4
"""Boots, below which a standard deviation says too little."""
SIZES: Final = (4, 6)
Record = Mapping[str, Any]


class MetricNoise(Strict):
    """`sd`: of the logarithm, between boots. By boots an arm: `floors`, the share by which equal arms differ in one of
    twenty trials; `no_harm`: the least margin below which a harm can be shown to be, with a power of 80 %."""

    sd: Annotated[float, Field(ge=0)]
    floors: dict[str, float]
    no_harm: dict[str, float]


class SiteNoise(Strict):
    """Of one generation and one measurement. `boots`: their ids; `records`: hash over their records."""

    schema_version: Literal[1] = 1
    site: str
    generation: str
    boots: tuple[str, ...] = Field(min_length=FEWEST)
    records: str
    metrics: dict[str, MetricNoise]

    def floor(self, metric: str, boots: int) -> float | None:
        """See `decision_rules.Noise`; None too where it is no share that a plan could ask for."""
        found = self.metrics.get(metric)
        share = None if found is None else found.floors.get(str(boots))
        return share if share is None or 0 < share < 0.5 else None

    def shows_no_harm(self, metric: str, boots: int, margin: float) -> bool:
        """See `decision_rules.Noise`."""
        found = self.metrics.get(metric)
        return found is not None and margin >= found.no_harm.get(str(boots), math.inf)


@dataclass(frozen=True)
class _Boot:
    record: Record
    metrics: Mapping[str, float]


def measure_noise(
    site: str, records: Sequence[Record], generation: str | None = None, trial: str | None = None
) -> SiteNoise:
    """From valid, measured boots of one generation (without one: of the newest such boot) that did the same work.

    `trial`: of its boots alone, for instance those of an A/A trial that was made while nothing else ran.
    Raises TS-STATS-FLOOR when there are fewer than four.
    """
    measured = [
        record
        for record in records
        if record["kind"] == "boot" and record["outcome"]["state"] == "valid" and record["bench"] is not None
        if trial is None or record["requested"]["trial"] == trial
    ]
    wanted = generation or (str(measured[-1]["resolved"]["generation"]) if measured else None)
    own = [record for record in measured if record["resolved"]["generation"] == wanted]
    work = canonical_sha256(own[-1]["bench"]["input"]) if own else None
    own = [record for record in own if canonical_sha256(record["bench"]["input"]) == work]
    if len(own) < FEWEST:
        raise TrisparkError(
            "TS-STATS-FLOOR",
            "too few equal boots to say how they differ",
            where=f"records of site {site}",
            expected=f"{FEWEST} valid, measured boots of one generation with the same prompts",
            observed=f"{len(own)} of {wanted or 'none'}" + (f" in {trial}" if trial else ""),
            remedy="boot the baseline more often (a trial's baseline boots count), or name a generation",
        )
    # Here, because plans are made without numpy.
    from trispark.trial_metrics import boot_metrics

    boots = [_Boot(record, boot_metrics(record).metrics) for record in own]
    names = sorted(set.intersection(*(set(boot.metrics) for boot in boots)))
    return SiteNoise(
        site=site,
        generation=str(wanted),
        boots=tuple(str(boot.record["boot_id"]) for boot in boots),
        records=canonical_sha256([dict(boot.record) for boot in boots]),
        metrics={
            name: _noise(name, [boot.metrics[name] for boot in boots])
            for name in names
            if all(boot.metrics[name] > 0 for boot in boots)
        },
    )


def noise_file(root: Path, site: str) -> Path:
    """The controller's copy; there is no other."""
    return root / ".trispark" / site / "noise.json"


def kept_noise(root: Path, site: str) -> SiteNoise | None:
    """What was measured last, None for nothing. Raises TS-STATS-NOISEFILE for what cannot be read."""
    path = noise_file(root, site)
    try:
        return SiteNoise.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise TrisparkError(
            "TS-STATS-NOISEFILE",
            "what was measured of equal boots cannot be read",
            where=str(path),
            expected="what ./trispark stats floor wrote",
            observed=f"{type(error).__name__}"[:200],
            remedy="./trispark stats floor measures it anew",
        ) from None


def keep_noise(root: Path, noise: SiteNoise) -> Path:
    """Write it in place of what was there."""
    path = noise_file(root, noise.site)
    path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    partial = path.with_suffix(".tmp")
    with partial.open("w", encoding="utf-8") as file:
        file.write(json.dumps(noise.model_dump(mode="json"), sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return path


def _noise(metric: str, values: Sequence[float]) -> MetricNoise:
    import statistics

    from scipy.special import stdtrit

    sd = statistics.stdev(math.log(value) for value in values)
    turn = 1.0 if better(metric) == "higher" else -1.0

    def share(effect: float) -> float:
        return abs(math.expm1(turn * effect))

    floors, no_harm = {}, {}
    for size in SIZES:
        error = sd * math.sqrt(2 / size)
        # The sd is known from so many boots only: a wider quantile than that of the trial's own test.
        floors[str(size)] = share(float(stdtrit(len(values) - 1, 0.975)) * error)
        freedom = 2 * size - 2
        no_harm[str(size)] = share(-float(stdtrit(freedom, 0.975) + stdtrit(freedom, 0.8)) * error)
    return MetricNoise(sd=sd, floors=floors, no_harm=no_harm)
