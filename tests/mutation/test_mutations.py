"""Each mechanism, broken on purpose, is found by the test that the table names.

A row replaces one text in a copy of the tree and runs one test there. In the copy without the change the test passes;
in the changed one it fails by itself, not by an import, a syntax error or a fixture. All rows run with `--all`; one
runs always, so that the machinery is tested too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_files import make_engine_files
from mutation_run import DEADLINE_S, Case, Mutation, Run, apply, copy_tree, run_tests, verdict
from mutations_decoding import DECODING
from mutations_mechanisms import PREFETCH, RANKS, ROWS, SWITCHES, TWINS, VARIABLES
from mutations_serving import SERVING

TABLE = (*DECODING, *SERVING, *ROWS, *SWITCHES, *PREFETCH, *TWINS, *RANKS, *VARIABLES)
QUICK = next(each for each in TABLE if each.name == "fixed cap: all drafts are verified")


@pytest.fixture(scope="session")
def engine_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the engine's tests read, made once from the tree as it is."""
    directory = tmp_path_factory.mktemp("engine-files")
    make_engine_files(directory)
    return directory


@pytest.fixture(scope="session")
def unchanged(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine_files: Path
) -> Callable[[str], list[Case]]:
    """Cases of a test in the copy without a change; the tests of all rows of this session run once, together."""
    items = [item for item in request.session.items if "unchanged" in getattr(item, "fixturenames", ())]
    rows = [item.callspec.params["row"] for item in items]
    tree = tmp_path_factory.mktemp("unchanged")
    copy_tree(tree)
    tests = sorted({row.test for row in rows})
    run = run_tests(tree, tests, engine_files, first_failure_ends=False, deadline_s=6 * DEADLINE_S)
    assert run.rc in (0, 1), run.tail
    return run.of


def names(row: Mutation) -> str:
    return row.name.replace(" ", "_")


@pytest.mark.slow
@pytest.mark.parametrize("row", TABLE, ids=names)
def test_a_broken_mechanism_is_found(
    row: Mutation, unchanged: Callable[[str], list[Case]], engine_files: Path, tmp_path: Path
) -> None:
    cases = unchanged(row.test)
    assert cases, f"no test {row.test}"
    assert {case.outcome for case in cases} == {"passed"}
    copy_tree(tmp_path)
    apply(row, tmp_path)
    run = run_tests(tmp_path, [row.test], engine_files, first_failure_ends=True)
    assert verdict(run, row.test) == ""


def test_the_machinery(tmp_path: Path) -> None:
    """One row in full, without the engine's files."""
    for name in ("unchanged", "changed"):
        copy_tree(tmp_path / name)
    run = run_tests(tmp_path / "unchanged", [QUICK.test], None, first_failure_ends=False)
    assert (run.rc, {case.outcome for case in run.of(QUICK.test)}) == (0, {"passed"}), run.tail
    apply(QUICK, tmp_path / "changed")
    assert verdict(run, QUICK.test) == "it survives: the test passes"
    assert verdict(run_tests(tmp_path / "changed", [QUICK.test], None, first_failure_ends=True), QUICK.test) == ""


def test_every_row_applies(tmp_path: Path) -> None:
    """Each text is there once and each result is Python; no two rows are the same."""
    copy_tree(tmp_path)
    for row in TABLE:
        text = (tmp_path / row.file).read_text(encoding="utf-8")
        assert row.before != row.after, row.name
        apply(row, tmp_path)
        (tmp_path / row.file).write_text(text, encoding="utf-8")
    assert [name for name, count in Counter(row.name for row in TABLE).items() if count > 1] == []
    changes = Counter((row.file, row.before, row.after) for row in TABLE)
    assert [change for change, count in changes.items() if count > 1] == []


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("no such text", "", "occurs 0 times"),
        ("count", "x", r"occurs \d\d times"),
        ("live = min(cap.fixed, count)", "live = (", "never closed"),
    ],
)
def test_a_row_that_does_not_apply_is_an_error(tmp_path: Path, before: str, after: str, message: str) -> None:
    copy_tree(tmp_path)
    row = Mutation("x", QUICK.file, before, after, QUICK.test)
    with pytest.raises((ValueError, SyntaxError), match=message):
        apply(row, tmp_path)


T = "tests/x.py::test_x"


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (Run(0, (Case(T, "passed"),), ""), "it survives"),
        (Run(1, (Case(f"{T}[a]", "passed"), Case(f"{T}[b]", "failure", "assert 1 == 2")), ""), ""),
        (Run(1, (Case("tests/x.py::test_xy", "failure", "assert 1 == 2"),), "tail"), "did not fail by itself"),
        (Run(1, (Case(T, "error", "failed on setup"),), "tail"), "did not fail by itself"),
        (Run(1, (Case(T, "failure", "NameError: name 'x' is not defined"),), ""), "breaks the program"),
        (Run(1, (Case(T, "failure", "assert x"), Case(T, "error", "teardown")), ""), "a fixture failed"),
        (Run(2, (), "collection"), "pytest 2"),
        (Run(-1, (), "no end within 300 s"), "pytest -1"),
    ],
)
def test_verdicts(run: Run, expected: str) -> None:
    found = verdict(run, T)
    assert expected in found
    assert bool(found) is bool(expected)
