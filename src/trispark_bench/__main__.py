"""`python3 -m trispark_bench INPUT.json OUTPUT.json`: 0 with results, 1 for a failed run, 2 for a wrong input."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import aiohttp

from trispark_bench.plan import BenchPlan, PlanError
from trispark_bench.run import SILENCE_S, run_plan


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
    try:
        results = asyncio.run(asyncio.wait_for(run_plan(plan), plan.deadline_s))
    except (RuntimeError, TimeoutError, aiohttp.ClientError) as error:
        print(
            f"TS-BENCH-RUN: the measurement ended early; where: {plan.base_url}; expected: an answer to every request, "
            f"no silence of {SILENCE_S:g} s, the end within {plan.deadline_s:g} s; "
            f"observed: {type(error).__name__}: {error}; do: read the engine's kept log",
            file=sys.stderr,
        )
        return 1
    temporary = target.with_suffix(".tmp")
    temporary.write_text(json.dumps(results), encoding="utf-8")
    temporary.replace(target)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
