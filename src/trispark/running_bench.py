"""A measurement of what runs now: as a boot is measured, without being one.

Its file lies beside the records and not among them: no verdict and no floor is made of it, because the engine may have
served others before and nobody planned it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trispark.boot_outcome import first_failure
from trispark.boot_plan import Moment, bench_part
from trispark.measurement import Facts, Measured, measurement_problem, read_measurement
from trispark.site import load_site
from trispark.trial_metrics import measured_of

SCHEMA_VERSION: Final = 1
FILE_MODE: Final = 0o600


@dataclass(frozen=True)
class RunningBench:
    """`document`: what is kept; `failure_line`: why the measurement does not count, empty when it does."""

    document: dict[str, Any]
    lines: list[str]
    failure_line: str


def plan_bench(root: Path, site: str, look: Mapping[str, Any]) -> dict[str, Any]:
    """`look` (boot_plan.plan_stored, of what runs) with the site's measurement. Raises TS-SITE-*, TS-WORKLOAD-*."""
    return {**look, "bench": bench_part(load_site(root / "inventory" / site), root)}


def judge_bench(
    site: str, plan: Mapping[str, Any], facts: Facts, statuses: Mapping[str, Mapping[str, Any] | None], moment: Moment
) -> RunningBench:
    """`facts`: {node: what the tasks registered} as of a boot; `statuses`: {node: answer of the agent's `status`} of
    before. Raises nothing for a measurement that failed: what there is of it is in the document."""
    measured = read_measurement(plan, facts)
    # A rank was not started here, so nobody watched it start.
    watched = {node: {**fact, "watch": {"state": "ready"}} for node, fact in facts.items()}
    failure = first_failure(plan, watched)
    problem = failure.line if failure is not None else measurement_problem(plan, measured)
    bench = measured.recorded(plan["bench"]) if measured.output is not None else None
    metrics = {} if bench is None or problem is not None else measured_of(bench)
    boots = sorted({str(((status or {}).get("engine") or {}).get("boot_id")) for status in statuses.values()})
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "bench",
        "site": site,
        "time": moment.utc,
        "generation": plan["generation"],
        "boots": boots,
        "outcome": {"state": "valid" if problem is None else "invalid", "reason": problem or "complete"},
        "metrics": metrics,
        "bench": bench,
    }
    lines = [f"{name}: {value:.4g}" for name, value in metrics.items()]
    return RunningBench(document, [*lines, *_not_checked(measured)], problem or "")


def keep_bench(root: Path, found: RunningBench, moment: Moment) -> Path:
    """The file, whole or not there."""
    directory = root / ".trispark" / str(found.document["site"]) / "bench"
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    path = directory / f"{moment.boot_id[1:]}.json"
    partial = path.with_suffix(".tmp")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE), "w", encoding="utf-8") as file:
        json.dump(found.document, file, ensure_ascii=False, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return path


def _not_checked(measured: Measured) -> list[str]:
    missing = {name for check in measured.checks for name in check.not_checked}
    return [f"not checked, the server does not tell it: {', '.join(sorted(missing))}"] if missing else []
