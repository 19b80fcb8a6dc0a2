"""What the load client and the head's log say of a measurement, and whether it counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trispark.bench_check import bench_problem
from trispark.bench_plan import bench_input
from trispark.bench_windows import WindowCheck, check_windows
from trispark.benchstats import BenchSummary, summarize
from trispark.canonical import canonical_json
from trispark.errors import TrisparkError
from trispark.step_time import StepCheck, check_steps, steps_problem

Facts = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Measured:
    """The load client's output and its summary; `unreadable`: why there is no summary of an output that is there."""

    output: dict[str, Any] | None
    summary: BenchSummary | None
    unreadable: TrisparkError | None = None
    checks: tuple[WindowCheck, ...] = ()
    steps: tuple[StepCheck, ...] = ()

    def recorded(self, bench: Mapping[str, Any]) -> dict[str, Any]:
        """The output with its checks, and `bench` (the plan's) with texts as hashes, as a record keeps it."""
        return {
            **(self.output or {}),
            "input": bench_input(bench),
            "checks": [asdict(check) for check in self.checks],
            "steps": [asdict(check) for check in self.steps],
        }


def measurement_problem(plan: Mapping[str, Any], measured: Measured) -> str | None:
    """What is wrong with the measurement, as the line of an error; None when it is complete."""
    if measured.unreadable is not None:
        return str(measured.unreadable)
    problem = bench_problem(plan["bench"]["input"], measured.output, _probe_interval_s(plan))
    problem = problem or steps_problem(measured.steps)
    return f"TS-BENCH-INCOMPLETE: {problem}; do: read the kept logs, then boot again" if problem else None


def read_measurement(plan: Mapping[str, Any], facts: Facts) -> Measured:
    """Raises nothing: a measurement that cannot be read is kept, too.

    `plan`: of a boot, or of a look at what runs, with its `bench`; `facts`: as for boot_outcome.record_boot.
    """
    for fact in facts.values():
        answer = fact.get("bench") or {}
        output = answer.get("output") or _from_rows(answer)
        if output:
            try:
                summary, checks = summarize(output), check_windows(output, _probe_interval_s(plan))
                steps = check_steps(output, checks, _head_log(plan, facts))
                return Measured(output, summary, None, tuple(checks), tuple(steps))
            except TrisparkError as error:
                recordable = isinstance(output, dict) and _recordable(output)
                return Measured(output if recordable else None, None, error)
    return Measured(None, None)


def _from_rows(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a load client without an output had written until then, as one that ended early."""
    rows = answer.get("rows")
    if not rows:
        return None
    said = [str(line) for line in answer.get("log_tail") or ()]
    ended = said[-1] if said else f"exit {answer.get('exit_code')}"
    return {"requests": rows, "waves": [], "server_info": [], "windows": [], "ended": ended}


def _head_log(plan: Mapping[str, Any], facts: Facts) -> str | None:
    """The lines of rank 0, as observed after the measurement."""
    for name, node in plan["nodes"].items():
        if node["rank"] == 0:
            return ((facts.get(name) or {}).get("after_load") or {}).get("log")
    return None


def _probe_interval_s(plan: Mapping[str, Any]) -> float | None:
    """How often the container's own health check asks an idle engine for a token (site and engine say so)."""
    for node in plan["nodes"].values():
        check = ((node.get("spec") or {}).get("container") or {}).get("healthcheck")
        if node["rank"] == 0 and check:
            return float(check["interval_s"])
    return None


def _recordable(output: Mapping[str, Any]) -> bool:
    """Whether a record can hold it as it is (record_model.Bench)."""
    info = output.get("server_info")
    lists = [
        output.get("requests"),
        output.get("waves"),
        [] if info is None or isinstance(info, Mapping) else info,
        output.get("windows") or [],
    ]
    if not all(isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows) for rows in lists):
        return False
    try:
        canonical_json(dict(output))
    except TrisparkError:
        return False
    return True
