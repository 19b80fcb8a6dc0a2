"""The actions of the quality gates, in real runs of ansible-playbook beside an agent that says what it was asked."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from quality_answers import healthy

from trispark.catalog import load_catalog
from trispark.errors import TrisparkError
from trispark.quality.run import LongSet, reference_path
from trispark.resolve import resolve
from trispark.site import load_site

ROOT = Path(__file__).resolve().parents[3]
TOOLS = Path(sys.executable).parent
SECRET = "hf_" + "n0tAKeyOfAnybody" * 2
AGENT = """#!{python}
import json, pathlib, sys
asked = pathlib.Path({asked!r})
request = json.load(sys.stdin)
with asked.open("a") as file:
    file.write(json.dumps([sys.argv[1], request]) + "\\n")
said = json.loads(pathlib.Path({said!r}).read_text())
answer = said[len(asked.read_text().splitlines()) - 1]
print(json.dumps(answer))
sys.exit(0 if answer["ok"] else 1)
"""
REFUSED = {
    "id": "TS-AGENT-REQUEST",
    "what": "the engine does not answer",
    "where": "http://127.0.0.1:30000",
    "expected": "an answer",
    "observed": "two\nlines",
    "remedy": "see its log",
}
ROUNDS = [[{"url": "http://127.0.0.1:1/a"}, {"url": "http://127.0.0.1:1/b"}], [{"url": "http://127.0.0.1:1/c"}]]


class Bench:
    """A directory in which plays are run; the agent of the one host is a program that notes what it is asked."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.asked = directory / "asked.jsonl"
        (directory / "bin").mkdir(parents=True)
        agent = directory / "bin/trispark-node"
        agent.write_text(AGENT.format(python=sys.executable, asked=str(self.asked), said=str(directory / "said.json")))
        agent.chmod(0o755)
        # Imported by every Python at its start: the agent is where this test has it.
        (directory / "sitecustomize.py").write_text(
            f"import trispark_node\ntrispark_node.NODE_ROOT = {str(directory)!r}\n"
        )

    def run(self, tasks: list[dict[str, Any]], *flags: str, said: list[Any] | None = None) -> tuple[list[Any], str]:
        """([result of each task], all that was printed)."""
        self.asked.unlink(missing_ok=True)
        (self.directory / "said.json").write_text(json.dumps(said or []))
        each = [
            {"name": f"Task {n}", "register": f"result{n}", "ignore_errors": True, **task}
            for n, task in enumerate(tasks)
        ]
        target = self.directory / "target.json"
        names = ", ".join(f"result{n}" for n in range(len(tasks)))
        note = {
            "name": "Write",
            "check_mode": False,
            "ansible.builtin.copy": {"content": f"{{{{ [{names}] | to_json }}}}", "dest": str(target), "mode": "0600"},
        }
        play = [{"name": "Ask", "hosts": "spark0", "gather_facts": False, "tasks": [*each, note]}]
        (self.directory / "play.yml").write_text(json.dumps(play))
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        (self.directory / "hosts.yml").write_text(json.dumps({"ungrouped": {"hosts": {"spark0": local}}}))
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
            "PATH": f"{TOOLS}:{os.environ['PATH']}",
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "PYTHONPATH": f"{self.directory}:{ROOT / 'src'}",
        }
        done = subprocess.run(
            ["ansible-playbook", "-i", "hosts.yml", *flags, "play.yml"],
            capture_output=True, text=True, check=False, env=environment, cwd=self.directory, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        return json.loads(target.read_text()), done.stdout + done.stderr

    @property
    def requests(self) -> list[Any]:
        """What the agent was asked: [verb, request] each."""
        return [json.loads(line) for line in self.asked.read_text().splitlines()] if self.asked.exists() else []


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "plays")


# -- trispark_ask


def test_answers_come_in_the_order_of_the_rounds(bench: Bench) -> None:
    said = [{"ok": True, "changed": True, "answers": ["a", "b"]}, {"ok": True, "answers": ["c"]}]
    (result,), _ = bench.run([{"trispark_ask": {"rounds": ROUNDS}}], said=said)
    assert (result["answers"], result["changed"]) == (["a", "b", "c"], False)
    assert [(verb, request["requests"]) for verb, request in bench.requests] == [
        ("request-batch", each) for each in ROUNDS
    ]


def test_a_round_that_is_refused_ends_it_in_one_line_with_its_id(bench: Bench) -> None:
    said = [{"ok": False, "error": REFUSED}, {"ok": True, "answers": ["c"]}]
    (result,), _ = bench.run([{"trispark_ask": {"rounds": ROUNDS}}], said=said)
    assert (result["failed"], result["check_id"]) == (True, "TS-AGENT-REQUEST")
    assert result["msg"].startswith("TS-AGENT-REQUEST: ")
    assert len(result["msg"].splitlines()) == 1
    assert "answers" not in result
    assert len(bench.requests) == 1, "nothing more is asked"


def test_check_mode_asks_the_engine_nothing(bench: Bench) -> None:
    (result,), _ = bench.run([{"trispark_ask": {"rounds": ROUNDS}}], "--check")
    assert (result["skipped"], bench.requests) == (True, [])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "missing required arguments: rounds"),
        ({"rounds": {"a": 1}}, "unable to convert to list"),
        ({"rounds": ROUNDS, "agent": "/bin/true"}, "Unsupported parameters"),
    ],
)
def test_arguments_that_are_none_are_said(bench: Bench, given: dict[str, Any], message: str) -> None:
    (result,), _ = bench.run([{"trispark_ask": given}])
    assert result["failed"]
    assert message in result["msg"]
    assert bench.requests == []


# -- trispark_quality


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of the project, with images."""
    found = tmp_path_factory.mktemp("project")
    for name in ("experiments", "templates", "adapters", "inventory"):
        shutil.copytree(ROOT / name, found / name)
    images = "".join(f"site_{name}_image: registry:5000/x@sha256:{'a' * 64}\n" for name in ("engine", "bench"))
    (found / "inventory/lab/group_vars/all/images.yml").write_text(images)
    return found


@pytest.fixture(scope="module")
def plan(root: Path) -> dict[str, Any]:
    made = resolve(load_site(root / "inventory/lab"), load_catalog(root), None, None, root)
    return {"resolved": made.resolved, "generation": made.id}


@pytest.fixture(scope="module")
def answers(root: Path, plan: dict[str, Any]) -> list[Any]:
    asked = LongSet.load(root, "lab", plan["resolved"])
    return [healthy(asked.quality, each) for each in asked.questions]


def broken_reference(text: str) -> str:
    """No reference any more."""
    return text[: len(text) // 2]


def other_questions(text: str) -> str:
    content = json.loads(text)
    content["asked"] = "other"
    return json.dumps(content)


@pytest.mark.parametrize(
    ("edit", "observed"),
    [
        (broken_reference, "JSONDecodeError: "),
        (other_questions, "answers to other questions"),
        (lambda _: "[]", "Type"),
    ],
)
def test_a_reference_that_cannot_be_compared_with_is_no_pass(
    root: Path, plan: dict[str, Any], answers: list[Any], tmp_path: Path, edit: Any, observed: str
) -> None:
    asked = LongSet.load(root, "lab", plan["resolved"])
    path = tmp_path / "reference.json"
    assert asked.beside(path, answers) is None
    asked.keep(path, answers)
    found = asked.beside(path, answers)
    assert found is not None
    assert found.ok
    path.write_text(edit(path.read_text()))
    with pytest.raises(TrisparkError) as caught:
        asked.beside(path, answers)
    assert (caught.value.id, caught.value.where) == ("TS-QUALITY-REFERENCE", str(path))
    assert caught.value.observed.startswith(observed)


def test_a_workload_to_repeat_that_is_not_asked_is_named(root: Path, plan: dict[str, Any], tmp_path: Path) -> None:
    copied = tmp_path / "project"
    shutil.copytree(root, copied)
    site = copied / "inventory/lab/group_vars/all/site.yml"
    text, count = re.subn(r"(?m)^site_quality_repeats:.*$", "site_quality_repeats: [prose, verse]", site.read_text())
    assert count == 1
    site.write_text(text)
    with pytest.raises(TrisparkError) as caught:
        LongSet.load(copied, "lab", plan["resolved"])
    assert (caught.value.id, caught.value.observed) == ("TS-QUALITY-REPEATS", "verse")


def judge(root: Path, plan: dict[str, Any], step: str, **more: Any) -> dict[str, Any]:
    return {"trispark_quality": {"root": str(root), "site": "lab", "step": step, "plan": plan, **more}}


def executed(plan: dict[str, Any], answers: list[Any], root: Path) -> dict[str, Any]:
    pieces = LongSet.load(root, "lab", plan["resolved"]).sandbox(answers)["request"]["input"]["pieces"]
    return {"exit_code": 0, "output": {"refused": None, "results": {piece["id"]: [] for piece in pieces}}}


def test_the_steps_of_a_sound_engine(bench: Bench, root: Path, plan: dict[str, Any], answers: list[Any]) -> None:
    ran = executed(plan, answers, root)
    path = reference_path(root, "lab")
    path.unlink(missing_ok=True)
    keep = judge(root, plan, "judge", answers=answers, sandbox=ran, reference="keep")
    (checked,), _ = bench.run([keep], "--check")
    assert (checked["changed"], checked["published"]["ok"], path.exists()) == (False, True, False), (
        "check keeps nothing"
    )
    results, output = bench.run([
        judge(root, plan, "ask"),
        judge(root, plan, "execute", answers=answers),
        judge(root, plan, "execute"),
        judge(root, plan, "judge", answers=answers, sandbox=ran),
        keep,
        judge(root, plan, "judge", answers=answers, sandbox=ran),
    ])  # fmt: skip
    asked, code, none, first, kept, beside = results
    assert sum(map(len, asked["rounds"])) == len(answers)
    assert (code["request"]["isolated"], len(code["request"]["input"]["pieces"])) == (True, 3)
    assert (code["rank"], none["request"]) == (1, {})
    assert first["lines"][-1] == "no reference is kept, nothing was compared"
    assert (kept["changed"], kept["lines"][-1]) == (True, f"kept as the reference: {path}")
    assert "IDENTICAL" in beside["lines"][-1]
    assert [each["changed"] for each in results] == [False, False, False, False, True, False]
    assert beside["published"]["generation"] == plan["generation"]
    assert bench.requests == [], "no node is touched"
    assert "DEPRECATION" not in output.upper()


def test_what_fails_is_one_line_with_its_id(bench: Bench, root: Path, plan: dict[str, Any], answers: list[Any]) -> None:
    refused = {"exit_code": 3, "output": {"refused": "a network can be seen: eth0", "results": {}}}
    broken = [{"error": "connection\nrefused"}, *answers[1:]]
    (none, sandbox, choice), _ = bench.run([
        judge(root, plan, "judge", answers=broken, reference="keep"),
        judge(root, plan, "judge", answers=answers, sandbox=refused),
        judge(root, plan, "guess"),
    ])  # fmt: skip
    assert (none["failed"], none["changed"], none["check_id"]) == (True, False, "TS-QUALITY-FAILED")
    assert (sandbox["failed"], sandbox["check_id"]) == (True, "TS-QUALITY-SANDBOX")
    assert [len(each["msg"].splitlines()) for each in (none, sandbox, choice)] == [1, 1, 1]
    assert none["published"]["ok"] is False
    assert "value of step must be one of" in choice["msg"]


def test_no_key_of_the_engine_is_in_a_result(
    bench: Bench, root: Path, plan: dict[str, Any], answers: list[Any]
) -> None:
    """A plan holds none, and what a run was given besides is not handed on."""
    known = {**plan, "token": SECRET}
    results, output = bench.run(
        [judge(root, known, "ask"), judge(root, known, "execute", answers=answers), judge(root, known, "judge")], "-vvv"
    )
    assert SECRET not in json.dumps(results) + output


@pytest.mark.parametrize(
    ("change", "observed"),
    [
        (lambda text: "", "JSONDecodeError"),
        (lambda text: text[: len(text) // 2], "JSONDecodeError"),
        (lambda text: "[]", "TypeError"),
        (lambda text: text.replace('"asked"', '"said"'), "KeyError: 'asked'"),
        (lambda text: text.replace('"answers"', '"replies"'), "KeyError: 'answers'"),
        (lambda text: json.dumps({**json.loads(text), "asked": "0" * 64}), "answers to other questions"),
    ],
    ids=["empty", "cut", "a list", "without what was asked", "without answers", "other questions"],
)
def test_a_reference_that_is_none_is_refused_and_none_is_no_fault(
    root: Path, plan: dict[str, Any], answers: list[Any], tmp_path: Path, change: Any, observed: str
) -> None:
    asked = LongSet.load(root, "lab", plan["resolved"])
    path = tmp_path / "kept" / "reference.json"
    assert asked.beside(path, answers) is None
    asked.keep(path, answers)
    beside = asked.beside(path, answers)
    assert beside is not None
    assert (beside.ok, beside.expected) == (True, f"the answers of {plan['generation']}, or equivalent ones")
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(TrisparkError) as refused:
        asked.beside(path, answers)
    assert (refused.value.id, refused.value.where) == ("TS-QUALITY-REFERENCE", str(path))
    assert observed in refused.value.observed
