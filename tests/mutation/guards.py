"""Removes one guard at a time and says which test finds that out.

    python tests/mutation/guards.py --count 60 --seed 7       a sample of the ids, one guard of each
    python tests/mutation/guards.py --all                     every guard
    python tests/mutation/guards.py --id TS-AGENT-EPOCH       every guard of some ids
    ... --out docs/results/guards.md                          also the page

Each guard is removed in a copy of the tree, and the tests that can find it are run there until one fails. That test
must pass in the copy as it is. A guard that no test finds survives, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parents[2]
for part in ("src", "lab", "adapters", "tests/unit/lab_engine", "tests/mutation"):
    sys.path.insert(0, str(ROOT / part))

from guard_sites import Guard, collect, without  # noqa: E402
from guard_tests import TestFiles  # noqa: E402
from guards_equivalent import EQUIVALENT  # noqa: E402
from mutation_run import NO_TEST_FAILURE, Run, run_tests  # noqa: E402

SEED = 20261201
STAGES = 3
STAGE_S = 400.0
"""For the tests of one stage."""
NO_TESTS = 5
"""Status of pytest when all that it was given was deselected."""
LATE = -1
"""Of a run that was ended: the guard may have been what ended a wait."""
CAUGHT, SURVIVED, EXCUSED, UNCLEAR = "caught", "survived", "equivalent", "unclear"


@dataclass(frozen=True)
class Result:
    """`by`: the test that failed, the reason why nothing can, or what went wrong."""

    guard: Guard
    outcome: str
    by: str
    seconds: float


def copy_tree(target: Path, root: Path = ROOT) -> None:
    """Tracked and new files, without what git ignores."""
    argv = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        source = root / name
        if source.is_symlink() or source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)


def sample(guards: Sequence[Guard], count: int, seed: int) -> list[Guard]:
    """`count` ids drawn without repetition, and one guard of each; a seed draws the same from the same sources."""
    chosen = random.Random(seed)
    by_id: dict[str, list[Guard]] = {}
    for guard in guards:
        by_id.setdefault(guard.id, []).append(guard)
    ids = chosen.sample(sorted(by_id), min(count, len(by_id)))
    return [chosen.choice(by_id[name]) for name in ids]


def judge(guard: Guard, tree: Path, tests: TestFiles, stages: int) -> Result:
    """Remove the guard in `tree`, which is as it was afterwards; at most so many `stages` of tests."""
    began = time.monotonic()

    def result(outcome: str, by: str) -> Result:
        return Result(guard, outcome, by, time.monotonic() - began)

    if guard.key in EQUIVALENT:
        return result(EXCUSED, EQUIVALENT[guard.key])
    file, text = without(tree, guard)
    compile(text, file, "exec")
    path = tree / file
    original = path.read_text(encoding="utf-8")
    for stage in tests.stages(guard)[:stages]:
        broken: list[str] = []
        while True:
            arguments = [*stage, *(f"--deselect={name}" for name in broken)]
            path.write_text(text, encoding="utf-8")
            try:
                run = run_tests(tree, arguments, None, first_failure_ends=True, deadline_s=STAGE_S)
            finally:
                path.write_text(original, encoding="utf-8")
            if run.rc in (0, NO_TESTS):
                break
            if (
                run.rc == LATE
                and run_tests(tree, arguments, None, first_failure_ends=True, deadline_s=STAGE_S).rc != LATE
            ):
                return result(CAUGHT, f"the tests of {', '.join(stage[:3])} do not end")
            failed = finder(run)
            if failed is None:
                return result(UNCLEAR, " ".join(run.tail.split())[-300:])
            if run_tests(tree, [failed], None, first_failure_ends=True, deadline_s=STAGE_S).rc == 0:
                return result(CAUGHT, failed)
            broken.append(failed)  # it fails in a copy with the guard, too, and says nothing
    return result(SURVIVED, "")


def finder(run: Run) -> str | None:
    """The test that failed by itself; None where there is none, or the change broke the program."""
    for case in run.cases:
        if case.outcome == "failure" and not case.message.startswith(NO_TEST_FAILURE):
            return case.id
    return None


def run_all(guards: Sequence[Guard], jobs: int, stages: int = STAGES, root: Path = ROOT) -> list[Result]:
    """In the order of `guards`; each of `jobs` has a copy of the tree for itself."""
    tests = TestFiles(root)
    with tempfile.TemporaryDirectory(prefix="trispark-guards-") as scratch:
        trees: Queue[Path] = Queue()
        for number in range(jobs):
            tree = Path(scratch) / str(number)
            copy_tree(tree, root)
            trees.put(tree)

        def one(guard: Guard) -> Result:
            tree = trees.get()
            try:
                found = judge(guard, tree, tests, stages)
            finally:
                trees.put(tree)
            print(line(found), flush=True)
            return found

        with ThreadPoolExecutor(max_workers=jobs) as pool:
            return list(pool.map(one, guards))


def line(result: Result) -> str:
    return f"{result.outcome:10} {result.guard.id:28} {result.guard.place()}  {result.by}  {result.seconds:.1f} s"


def page(results: Sequence[Result], command: str, known: tuple[int, int]) -> str:
    """The page of results; `known`: how many guards and ids the sources have."""
    counts = {name: sum(each.outcome == name for each in results) for name in (CAUGHT, EXCUSED, SURVIVED, UNCLEAR)}
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout.strip()
    head = (
        "# Guards: one check removed at a time\n\n"
        "Each row is one guard of the sources: a statement that refuses something under a stable id, or a gate. "
        "It was\nremoved in a copy of the tree, and the tests were run until one failed that passes with it.\n\n"
        f"- command: `{command}`\n- commit: `{commit}`\n"
        f"- the sources have {known[0]} guards under {known[1]} ids; here: {len(results)}: {said}\n"
        f"- {sum(each.seconds for each in results) / 60:.0f} minutes of tests\n\n"
        "| id | place | outcome | by |\n|---|---|---|---|\n"
    )
    rows = [
        f"| `{each.guard.id}` | `{each.guard.file}` {each.guard.function} | {each.outcome} | "
        f"{each.by.replace('|', chr(92) + '|') or '-'} |\n"
        for each in sorted(results, key=lambda each: each.guard.key)
    ]
    return head + "".join(rows)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--all", action="store_true", dest="everything")
    parser.add_argument("--id", action="append", dest="ids")
    parser.add_argument(
        "--stages", type=int, default=STAGES, help="1: tests that name the id, 2: of the module, 3: all"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    guards = collect(ROOT)
    known = len(guards), len({guard.id for guard in guards})
    chosen = guards if given.everything else sample(guards, given.count, given.seed)
    if given.ids:
        chosen = [guard for guard in guards if guard.id in given.ids]
    print(f"{len(chosen)} of {known[0]} guards, {known[1]} ids, seed {given.seed}", flush=True)
    results = run_all(chosen, given.jobs, given.stages)
    if given.out:
        command = shlex.join(["python", "tests/mutation/guards.py", *arguments])
        given.out.write_text(page(results, command, known), encoding="utf-8")
    left = [each for each in results if each.outcome in (SURVIVED, UNCLEAR)]
    print(f"{len(results) - len(left)} of {len(results)} found or explained; left: {len(left)}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
