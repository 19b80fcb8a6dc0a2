"""Runs tests in a copy of the tree, and says which of them failed and how."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from engine_files import READY

ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    "adapters",
    "experiments",
    "inventory",
    "lab",
    "pyproject.toml",
    "src",
    "templates",
    "tests/conftest.py",
    "tests/unit/adapters",
    "tests/unit/controller",
    "tests/unit/lab_engine",
)
"""What the engine's tests need of the tree."""
DEADLINE_S = 300
"""One test; all tests of the table together have six times as long."""
NO_TEST_FAILURE = ("ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "NameError", "fixture ")
"""A mutation that ends so is a mistake of the mutation and proves nothing."""


@dataclass(frozen=True)
class Mutation:
    """`before`, which occurs once in `file`, becomes `after`; then `test` (a node id of pytest, with or without the
    parameters) must fail."""

    name: str
    file: str
    before: str
    after: str
    test: str


@dataclass(frozen=True)
class Case:
    """One test of a run. `message` is the first line of its failure or error; `skipped` is neither."""

    id: str
    outcome: str
    message: str = ""


@dataclass(frozen=True)
class Run:
    """How a run ended: pytest's exit status, its tests and the end of its output."""

    rc: int
    cases: tuple[Case, ...]
    tail: str

    def of(self, test: str) -> list[Case]:
        """The cases of a test that is named with or without parameters."""
        return [case for case in self.cases if case.id == test or case.id.startswith(f"{test}[")]


def copy_tree(target: Path) -> None:
    """The needed part of the tree, without what is compiled."""
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, target / part, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            (target / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / part)


def apply(mutation: Mutation, tree: Path) -> None:
    """Change the one place; ValueError when it is not exactly one, or what comes out is no Python."""
    path = tree / mutation.file
    text = path.read_text(encoding="utf-8")
    found = text.count(mutation.before)
    if found != 1:
        raise ValueError(f"{mutation.name}: the text to replace occurs {found} times in {mutation.file}")
    changed = text.replace(mutation.before, mutation.after)
    compile(changed, mutation.file, "exec")
    path.write_text(changed, encoding="utf-8")


def run_tests(
    tree: Path,
    tests: Iterable[str],
    engine_files: Path | None,
    *,
    first_failure_ends: bool,
    deadline_s: float = DEADLINE_S,
) -> Run:
    """pytest on `tests` in `tree`, alone and with nothing of this process's own paths."""
    report = tree / "report.xml"
    report.unlink(missing_ok=True)
    controlled = ("DSV41_", "DSPARK_", "SGLANG_", "NCCL_", "PYTEST_", "TRISPARK_", "PYTHONPATH")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(controlled)}
    environ |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    if engine_files is not None:
        environ[READY] = str(engine_files)
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    argv += [f"--rootdir={tree}", f"--basetemp={tree / 'tmp'}", *(["-x"] if first_failure_ends else []), *tests]
    process = subprocess.Popen(
        argv,
        cwd=tree,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    late = False
    try:
        output, _ = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        late = True
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # and the ranks that the test started
    if late:
        output, _ = process.communicate()
        return Run(-1, (), f"no end within {deadline_s} s: {output[-2000:]}")
    return Run(process.returncode, tuple(_cases(report)), output[-4000:])


def _cases(report: Path) -> list[Case]:
    if not report.is_file():
        return []
    found = []
    for case in ElementTree.parse(report).iter("testcase"):
        node = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        ended = [child for child in case if child.tag in ("failure", "error", "skipped")]
        message = (ended[0].get("message") or "").strip().splitlines() if ended else []
        found.append(Case(node, ended[0].tag if ended else "passed", message[0] if message else ""))
    return found


def verdict(run: Run, test: str) -> str:
    """Empty when the mutation was killed as it must be: the test failed by itself. Else what is wrong."""
    cases = run.of(test)
    failed = [case for case in cases if case.outcome == "failure"]
    if run.rc == 0:
        return "it survives: the test passes"
    if run.rc != 1 or not failed:
        return f"the test did not fail by itself (pytest {run.rc}): {run.tail}"
    if any(case.outcome == "error" for case in run.cases):
        return f"a fixture failed: {run.tail}"
    if any(case.message.startswith(NO_TEST_FAILURE) for case in failed):
        return f"it breaks the program, not the mechanism: {failed[0].message}"
    return ""
