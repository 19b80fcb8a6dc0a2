"""`python3 -m trispark_bench INPUT.json OUTPUT.json`: 0 with results, 1 for a failed run, 2 for a wrong input.

Beside OUTPUT.json it leaves raw.jsonl, a line a request. A failed run writes what it has, with `ended` saying why.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from trispark_bench.counters import CountersError
from trispark_bench.plan import BenchPlan, PlanError
from trispark_bench.rawfile import RawFile
from trispark_bench.run import Aborted, Results, run_plan


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: python3 -m trispark_bench INPUT.json OUTPUT.json", file=sys.stderr)
        return 2
    source, target = Path(arguments[0]), Path(arguments[1])
    try:
        plan = BenchPlan.from_json(json.loads(source.read_text(encoding="utf-8")))
    except (PlanError, OSError, ValueError) as error:
        print(
            f"TS-BENCH-INPUT: the measurement cannot be begun; where: {source}; "
            f"expected: what trispark_bench.plan reads; observed: {error}; "
            "do: use the load client's image of this version (./trispark play images)",
            file=sys.stderr,
        )
        return 2
    results = Results(plan)
    raw_path = target.with_name("raw.jsonl")
    ended = None
    try:
        raw = RawFile(raw_path)
        try:
            asyncio.run(_within(plan, results, raw))
        finally:
            raw.close()
    except OSError as error:
        # TimeoutError is one: silence, or the end of the time for all of it.
        ended = _run_line(plan, error) if isinstance(error, TimeoutError) else _disk_line(raw_path, error)
    except (Aborted, CountersError) as error:
        ended = _run_line(plan, error)
    return _leave(target, results, ended)


async def _within(plan: BenchPlan, results: Results, raw: RawFile) -> None:
    async with asyncio.timeout(plan.deadline_s):
        await run_plan(plan, results, raw)


def _run_line(plan: BenchPlan, error: Exception) -> str:
    return (
        f"TS-BENCH-RUN: the measurement ended early; where: {plan.base_url}; expected: an answer to every request, "
        f"no silence of {plan.silence_s:g} s, the end within {plan.deadline_s:g} s; "
        f"observed: {type(error).__name__}: {error}; do: read the engine's kept log"
    )


def _disk_line(path: Path, error: OSError) -> str:
    return (
        f"TS-BENCH-DISK: the results cannot be written; where: {path}; expected: room for them; "
        f"observed: {type(error).__name__}: {error.strerror or error}; do: make room on that node, then boot again"
    )


def _leave(target: Path, results: Results, ended: str | None) -> int:
    """Write the output, also that of a run which ended early; the exit status."""
    output: dict[str, Any] = results.as_json()
    if ended is not None:
        output["ended"] = ended
    temporary = target.with_suffix(".tmp")
    try:
        temporary.write_text(json.dumps(output, allow_nan=False), encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        ended = ended or _disk_line(target, error)
    if ended is not None:
        print(ended, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
