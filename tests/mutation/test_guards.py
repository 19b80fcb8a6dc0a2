"""Each guard that is removed is found by a test; a few always, a seeded sample of sixty ids with `--all`.

`python tests/mutation/guards.py --help` has larger ones; docs/results/guards.md has the last.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections import Counter
from pathlib import Path
from types import ModuleType

import guards
import pytest
from guard_sites import GATES, PARTS, RESULT_FILE, Guard, collect, without
from guard_tests import TestFiles
from guards import CAUGHT, EXCUSED, ROOT, SEED, finder, run_all, sample
from guards_equivalent import EQUIVALENT
from mutation_run import Case, Run

QUICK = (
    "TS-ADOPT-NODE",
    "TS-AGENT-IMAGE-DIGEST",
    "TS-ENV-RANGE",
    "TS-FEATURE-STAGE",
    "TS-UNINSTALL-ENGINE",
    "identity.mounts",
)
"""Whose tests take a second or two."""
ALL = collect(ROOT)
MODULE = """
from problems import made, problem

LIMIT = "TS-X-LIMIT"


def _late(name: str) -> Exception:
    return Problem("TS-X-LATE", name)


class Thing:
    def check(self, value: int) -> int:
        if value > 3:
            raise Problem(
                "TS-X-LARGE", "too large", observed=str(value)
            )
        try:
            self.found(value)
        except KeyError as error:
            raise _late("x") from error
        problems = []
        if value < 0:
            problems.append(Problem(id="TS-X-SMALL"))
        if value == 0:
            problems += [Problem(LIMIT, "none")]
        return value
"""


def test_the_sources_have_guards_and_every_gate_of_a_boot() -> None:
    assert len(ALL) > 550
    assert len({guard.id for guard in ALL}) > 300
    assert [key for key, count in Counter(guard.key for guard in ALL).items() if count > 1] == []
    assert {"identity.mounts", "engram.packed", "canary.text", "evidence."} <= {
        g.id for g in ALL if g.function == "gate"
    }


def test_every_guard_can_be_removed_and_is_gone_alone() -> None:
    """What is left is Python of the same number of lines, without this one guard."""
    for guard in ALL:
        file, text = without(ROOT, guard)
        compile(text, file, "exec")
        if file != RESULT_FILE:
            before = (ROOT / file).read_text(encoding="utf-8")
            changed = [one for one, other in zip(before.splitlines(), text.splitlines(), strict=True) if one != other]
            assert changed, guard


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for part in PARTS:
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "src/thing.py").write_text(MODULE)
    for file in (*GATES, RESULT_FILE):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes((ROOT / file).read_bytes())
    return tmp_path


def test_what_is_a_guard(tree: Path) -> None:
    found = [(each.id, each.function) for each in collect(tree) if each.file == "src/thing.py"]
    names = ("TS-X-LARGE", "TS-X-LATE", "TS-X-SMALL", "TS-X-LIMIT")
    assert found == [(name, "Thing.check") for name in names]


@pytest.mark.parametrize(
    ("error_id", "before", "after"),
    [
        ("TS-X-LARGE", "if value > 3:", "if value > 3:\n            pass\n\n\n"),
        ("TS-X-LATE", "except KeyError as error:", "except KeyError as error:\n            raise\n"),
        ("TS-X-SMALL", "if value < 0:", "if value < 0:\n            pass\n"),
    ],
)
def test_what_is_left_of_a_guard(tree: Path, error_id: str, before: str, after: str) -> None:
    guard = next(each for each in collect(tree) if each.id == error_id)
    _, text = without(tree, guard)
    assert after in text
    assert before in MODULE
    ast.parse(text)


@pytest.mark.parametrize(("check_id", "other"), [("identity.mounts", "identity.adapters"), ("evidence.", "env.x")])
def test_a_gate_without_its_guard_is_always_ok(
    tree: Path, monkeypatch: pytest.MonkeyPatch, check_id: str, other: str
) -> None:
    _, text = without(tree, Guard(check_id, GATES[0], "gate", 0, 1))
    module = ModuleType("gate_result_without")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(text, "x", "exec", dont_inherit=True), vars(module))
    named = f"{check_id}x" if check_id.endswith(".") else check_id
    for name, ok in ((named, True), (f"after_load.{named}", True), (other, False)):
        assert module.GateResult(name, 0, False, "", "").ok is ok


def test_a_guard_that_is_not_there_is_an_error(tree: Path) -> None:
    with pytest.raises(LookupError):
        without(tree, Guard("TS-X-NONE", "src/thing.py", "Thing.check", 0, 1))


def test_the_same_seed_draws_the_same_and_each_id_once() -> None:
    drawn = sample(ALL, 60, SEED)
    assert drawn == sample(list(ALL), 60, SEED)
    assert drawn != sample(ALL, 60, SEED + 1)
    assert len({guard.id for guard in drawn}) == 60
    assert len(sample(ALL, 10**6, SEED)) == len({guard.id for guard in ALL})


def test_tests_are_chosen_by_id_then_module_then_part() -> None:
    guard = next(each for each in ALL if each.id == "TS-AGENT-IMAGE-DIGEST")
    stages = TestFiles(ROOT).stages(guard)
    assert "tests/unit/node/test_observe.py" in stages[0]
    together = [name for stage in stages for name in stage]
    assert len(together) == len(set(together))
    assert "tests/unit/node/test_lock.py" in together
    assert not any("real_docker" in name for name in together)


def test_every_excused_guard_is_still_there_and_has_a_reason() -> None:
    keys = {guard.key for guard in ALL}
    assert [key for key in EQUIVALENT if key not in keys] == []
    assert all(len(reason.split()) > 5 for reason in EQUIVALENT.values())


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (Run(1, (Case("a", "passed"), Case("b", "failure", "assert 1 == 2")), ""), "b"),
        (Run(1, (Case("a", "failure", "SyntaxError: x"),), ""), None),
        (Run(1, (Case("a", "error", "fixture"),), ""), None),
        (Run(2, (), ""), None),
    ],
)
def test_what_counts_as_found(run: Run, found: str | None) -> None:
    assert finder(run) == found


def test_a_test_that_cannot_fail_lets_a_guard_survive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a tree of its own: one guard with a test, one that is only called."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src/thing.py").write_text(
        textwrap.dedent(
            """
            def check(value):
                if value > 3:
                    raise ValueError("TS-X-LARGE: too large")
                if value < 0:
                    raise ValueError("TS-X-SMALL: too small")
            """
        )
    )
    unit = tmp_path / "tests/unit/controller"
    unit.mkdir(parents=True)
    (unit / "test_thing.py").write_text(
        textwrap.dedent(
            """
            import sys, pathlib
            sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "src"))
            import pytest
            from thing import check

            def test_fails_anyway():
                assert False, "TS-X-LARGE TS-X-SMALL"

            def test_large():
                with pytest.raises(ValueError, match="TS-X-LARGE"):
                    check(4)

            def test_small():
                try:
                    check(-1)
                except ValueError as error:
                    assert "TS-X-SMALL" in str(error)
            """
        )
    )
    (tmp_path / "tests/mutation").mkdir()
    monkeypatch.setattr("guard_tests.DIRECTORIES", {"src": ("controller",)})
    tests = TestFiles(tmp_path)
    large = Guard("TS-X-LARGE", "src/thing.py", "check", 0, 4)
    small = Guard("TS-X-SMALL", "src/thing.py", "check", 0, 6)
    first, second = (guards.judge(each, tmp_path, tests, guards.STAGES) for each in (large, small))
    assert (first.outcome, first.by) == (CAUGHT, "tests/unit/controller/test_thing.py::test_large")
    assert second.outcome == guards.SURVIVED
    assert "raise ValueError" in (tmp_path / "src/thing.py").read_text(), "the tree is as it was"


def judged(chosen: list[Guard]) -> list[str]:
    return [guards.line(each) for each in run_all(chosen, 2) if each.outcome not in (CAUGHT, EXCUSED)]


def test_a_few_guards_are_found() -> None:
    chosen = sample([guard for guard in ALL if guard.id in QUICK], len(QUICK), SEED)
    assert len(chosen) == len(QUICK)
    assert judged(chosen) == []


@pytest.mark.slow
def test_a_sample_of_all_ids_is_found() -> None:
    assert judged(sample(ALL, 60, SEED)) == []
