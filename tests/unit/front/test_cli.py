"""The verbs: which site, which exit status, what is the last line, and no traceback for a mistake."""

from __future__ import annotations

import fcntl
import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripted_machine import ScriptedMachine

from trispark import cli, reporting
from trispark.cli import exit_codes, verb
from trispark.cli import lab as lab_module
from trispark.cli.demo import Demo
from trispark.cli.lab import LAB_PLAYBOOKS
from trispark.cli.play import READ_ONLY, Player, parse_extra
from trispark.cli.progress import LiveProgress, PlainProgress
from trispark.cli.pytest_command import pytest_argv
from trispark.cli.records import record_cache, summary
from trispark.cli.sites import choose_site
from trispark.cli.terminal import Terminal
from trispark.errors import TrisparkError
from trispark.lab import LAB_VERSION
from trispark.lab.layout import LABEL_LAB, LABEL_ROOT, LABEL_VERSION, root_id
from trispark.play_variables import VARIABLES
from trispark.run_events import FailedEvent, PlaySeconds, RunEvents, RunObserver
from trispark.runner import RunResult
from trispark.shard_job import INTERRUPTED
from trispark.status_view import status_lines

ROOT = Path(__file__).resolve().parents[3]


def result(
    name: str = "x",
    *,
    status: str = "successful",
    failures: tuple[FailedEvent, ...] = (),
    unreachable: tuple[str, ...] = (),
    changed: bool = False,
    published: dict[str, Any] | None = None,
) -> RunResult:
    return RunResult(
        run_id=f"run-{name}",
        playbook=name,
        directory=Path("/nowhere/run"),
        rc=0 if status == "successful" else 2,
        status=status,
        seconds=1.5,
        stats={},
        plays=[PlaySeconds("P", 1.0)],
        failures=list(failures),
        unreachable=frozenset(unreachable),
        published=published or {},
        changed=changed,
        last_play="P",
        last_task="T",
    )


FAILED = FailedEvent("spark0", "T", "TS-A-B: no")
UNKNOWN = FailedEvent("localhost", "T", "TS-FEATURE-UNKNOWN: no")
PLAIN_FAILED = FailedEvent("spark0", "T", "no")


@pytest.mark.parametrize(
    ("run", "status"),
    [
        pytest.param(result(), 0, id="ok"),
        pytest.param(result(status="failed", failures=(FAILED,), changed=True), 1, id="failed-after-a-change"),
        pytest.param(result(status="failed", failures=(PLAIN_FAILED,)), 1, id="failed-without-an-id"),
        pytest.param(result(status="failed", failures=(FAILED,)), 3, id="refused"),
        pytest.param(result(status="failed", failures=(UNKNOWN,)), 2, id="a-name-that-there-is-not"),
        pytest.param(result(status="failed", failures=(UNKNOWN, FAILED)), 3, id="refused-for-more-than-a-name"),
        pytest.param(result(status="failed", failures=(UNKNOWN,), changed=True), 1, id="name-after-a-change"),
        pytest.param(result(status="failed", failures=(FAILED,), unreachable=("spark1",)), 4, id="unreachable"),
        pytest.param(result(status="interrupted", changed=True), 130, id="interrupted"),
    ],
)
def test_exit_status_of_a_run(run: RunResult, status: int) -> None:
    assert exit_codes.of_run(run) == status
    assert status in exit_codes.MEANING


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "inventory" / "lab").mkdir(parents=True)
    return tmp_path


def add_site(checkout: Path, name: str, text: str) -> None:
    directory = checkout / "inventory" / name / "group_vars" / "all"
    directory.mkdir(parents=True)
    (directory / "site.yml").write_text(text)


@pytest.mark.parametrize(
    ("others", "named", "changing", "expected"),
    [
        pytest.param({}, None, True, "lab", id="lab-alone"),
        pytest.param({"sparks": "site_configured: false\n"}, None, True, "lab", id="other-not-configured"),
        pytest.param({"sparks": "site_configured: 'true'\n"}, None, True, "lab", id="other-says-text"),
        pytest.param({"sparks": ": ["}, None, True, "lab", id="other-unreadable"),
        pytest.param(
            {"sparks": "site_configured: true\n"}, None, True, "TS-SITE-AMBIGUOUS", id="change-must-not-guess"
        ),
        pytest.param({"sparks": "site_configured: true\n"}, None, False, "lab", id="reading-may"),
        pytest.param({"sparks": "site_configured: true\n"}, "lab", True, "lab", id="lab-named"),
        pytest.param({"sparks": "site_configured: true\n"}, "sparks", True, "sparks", id="other-named"),
        pytest.param(
            {"sparks": "site_name: sparks\n"}, "sparks", False, "TS-SITE-UNCONFIGURED", id="named-unconfigured"
        ),
        pytest.param({}, "nope", False, "TS-SITE-UNKNOWN", id="named-unknown"),
        pytest.param({}, "../lab", False, "TS-SITE-UNKNOWN", id="path"),
    ],
)
def test_site(checkout: Path, others: dict[str, str], named: str | None, changing: bool, expected: str) -> None:
    for name, text in others.items():
        add_site(checkout, name, text)
    if expected.startswith("TS-"):
        with pytest.raises(TrisparkError) as refused:
            choose_site(checkout, named, changing=changing)
        assert refused.value.id == expected
        return
    choice = choose_site(checkout, named, changing=changing)
    assert choice.name == expected
    assert choice.line.startswith(f"site: {expected}")


@pytest.mark.parametrize("pair", ["feature", "=x", "a b=c", ""])
def test_extra_that_is_no_pair_is_a_usage_error(pair: str) -> None:
    with pytest.raises(TrisparkError) as refused:
        parse_extra([pair])
    assert exit_codes.of_error(refused.value) == exit_codes.USAGE


@pytest.mark.parametrize(("pairs", "taken"), [(["a=1", "a=1"], True), (["a=1", "b=1"], True), (["a=1", "a=2"], False)])
def test_one_variable_has_one_value(pairs: list[str], taken: bool) -> None:
    if taken:
        assert parse_extra(pairs)["a"] == "1"
        return
    with pytest.raises(TrisparkError, match=r"a is given twice, with different values.*observed: 1 and 2"):
        parse_extra(pairs)


def test_extra_values_stay_text() -> None:
    assert parse_extra(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}


class FakePlaybooks:
    """Stands for ansible: gives each playbook's result and notes the order."""

    def __init__(self, results: dict[str, RunResult]) -> None:
        self.results = results
        self.played: list[tuple[str, str, Any]] = []

    def __call__(
        self, repo: Path, name: str, *, site: str, extra: Any, check: bool, diff: bool, observer: RunObserver
    ) -> RunResult:
        self.played.append((name, site, extra))
        observer.phase_started(f"phase of {name}")
        observer.phase_ended(f"phase of {name}", 1.25)
        return self.results.get(name, result(name, changed=True))

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.played]


@pytest.fixture
def run_cli(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, list[str], str]]:
    """Run the command line on an empty checkout; playbooks give what the test says."""
    monkeypatch.setattr(verb, "REPO", checkout)
    monkeypatch.delenv("TRISPARK_SITE", raising=False)

    def run(
        *arguments: str, playbooks: FakePlaybooks | None = None, lab: str = "up", engine: Any = None
    ) -> tuple[int, list[str], str]:
        fake = playbooks or FakePlaybooks({})
        monkeypatch.setattr(lab_module, "prepare_machine", lambda repo, say: say("prepared"))
        monkeypatch.setattr(lab_module, "connect_or_none", lambda: engine)
        monkeypatch.setattr(lab_module, "lab_state", lambda repo: {"docker": True, "state": lab, "nodes": {}})
        monkeypatch.setattr(lab_module, "lab_is_down", lambda repo: lab == "down")
        monkeypatch.setattr(verb, "Player", lambda repo, site, terminal: Player(repo, site, terminal, run=fake))
        monkeypatch.setattr(sys, "argv", ["trispark", *arguments])
        status = cli.main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return status, captured.out.splitlines(), captured.err

    return run


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        pytest.param(["no-such-verb"], 2, id="verb"),
        pytest.param(["play"], 2, id="missing-argument"),
        pytest.param(["play", "x", "--no-such-option"], 2, id="option"),
        pytest.param(["play", "x", "-e", "feature"], 2, id="extra"),
        pytest.param(["status", "--site", "nope"], 2, id="site"),
        pytest.param(["records", "show", "1"], 2, id="record"),
    ],
)
def test_mistakes(run_cli: Callable[..., tuple[int, list[str], str]], arguments: list[str], status: int) -> None:
    assert run_cli(*arguments)[0] == status


def test_changing_verb_refuses_to_guess_before_it_plays(
    run_cli: Callable[..., tuple[int, list[str], str]], checkout: Path
) -> None:
    add_site(checkout, "sparks", "site_configured: true\n")
    playbooks = FakePlaybooks({})
    status, _, err = run_cli("play", "rollback", playbooks=playbooks)
    assert (status, playbooks.played) == (3, [])
    assert err.startswith("trispark: TS-SITE-AMBIGUOUS")
    assert "; do: export TRISPARK_SITE=NAME " in err, "not the lab for an example: it is what was not meant"
    assert run_cli("play", "rollback", "--site", "sparks", playbooks=playbooks)[1][0] == "site: sparks"
    assert playbooks.played == [("rollback", "sparks", {})]
    assert run_cli("play", "rollback", "--check", playbooks=playbooks)[0] == 0


@pytest.mark.parametrize("name", ["rollback", "recover", "status", "play", "plan"])
def test_help_says_when_the_lab_is_no_default(run_cli: Callable[..., tuple[int, list[str], str]], name: str) -> None:
    shown = " ".join(" ".join(line.strip(" │") for line in run_cli(name, "--help")[1]).split())
    assert "TRISPARK_SITE" in shown
    assert "with a fleet configured" in shown


def test_lab_playbooks_never_leave_the_lab(
    run_cli: Callable[..., tuple[int, list[str], str]], monkeypatch: pytest.MonkeyPatch, checkout: Path
) -> None:
    add_site(checkout, "sparks", "site_configured: true\n")
    monkeypatch.setenv("TRISPARK_SITE", "sparks")
    playbooks = FakePlaybooks({})
    for arguments in (["lab", "up"], ["play", "lab_down"], ["play", "demo_incident"], ["demo", "--keep"]):
        assert run_cli(*arguments, playbooks=playbooks)[1][0] == "site: lab"
    assert {site for _, site, _ in playbooks.played} == {"lab"}


class LabOfAnotherVersion:
    """The Docker Engine as it lists the containers of a lab, and of the lab of another checkout."""

    def __init__(self, checkout: Path, version: str) -> None:
        ours = {LABEL_LAB: "1", LABEL_ROOT: root_id(checkout), LABEL_VERSION: version}
        theirs = {LABEL_LAB: "1", LABEL_ROOT: "0" * 16, LABEL_VERSION: "none"}
        self._labels = [ours, ours, theirs, None]

    def containers(self, *, all: bool) -> list[dict[str, Any]]:
        assert all, "also those that are stopped"
        return [{"Names": ["/x"], "Labels": labels} for labels in self._labels]


@pytest.mark.parametrize("arguments", [["play", "stage_a"], ["play", "rollback", "--check"]], ids=" ".join)
def test_a_lab_of_another_version_is_refused_before_anything_is_played(
    run_cli: Callable[..., tuple[int, list[str], str]], checkout: Path, arguments: list[str]
) -> None:
    playbooks = FakePlaybooks({})
    status, _, err = run_cli(*arguments, playbooks=playbooks, engine=LabOfAnotherVersion(checkout, "0"))
    assert (status, playbooks.played) == (3, [])
    assert err.startswith("trispark: TS-LAB-VERSION: ")
    assert f"expected: lab version {LAB_VERSION}; observed: lab version 0; do: ./trispark lab up" in err
    assert run_cli(*arguments, playbooks=playbooks, engine=LabOfAnotherVersion(checkout, LAB_VERSION))[0] == 0
    assert playbooks.played


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        *(["play", name] for name in sorted(set(VARIABLES) - LAB_PLAYBOOKS)),
        ["play", "site", "--check"],
        ["quality"],
        ["bench", "run"],
        ["bench", "rounds", "-e", "feature=engram_prefetch"],
        ["engram", "pack"],
        ["engram", "verify"],
        ["engram", "inspect"],
    ],
    ids=" ".join,
)
def test_without_a_lab_every_verb_for_its_nodes_says_so_at_once(
    run_cli: Callable[..., tuple[int, list[str], str]], arguments: list[str]
) -> None:
    playbooks = FakePlaybooks({})
    status, _, err = run_cli(*arguments, playbooks=playbooks, lab="down")
    assert (status, playbooks.played) == (3, [])
    assert err.startswith("trispark: TS-LAB-DOWN: ")
    assert err.endswith("; do: ./trispark lab up\n")


def test_without_a_lab_another_site_is_played_on(
    run_cli: Callable[..., tuple[int, list[str], str]], checkout: Path
) -> None:
    add_site(checkout, "sparks", "site_configured: true\n")
    playbooks = FakePlaybooks({})
    for arguments in (["play", "stage_a", "--site", "sparks"], ["lab", "up"], ["play", "lab_up"]):
        assert run_cli(*arguments, playbooks=playbooks, lab="down")[0] == 0
    assert len(playbooks.played) == 3


@pytest.mark.parametrize(
    "arguments", [["status"], ["play", "verify"], ["lab", "up"], ["play", "lab_down"]], ids=" ".join
)
def test_what_reads_or_remakes_a_lab_of_another_version_is_not_refused(
    run_cli: Callable[..., tuple[int, list[str], str]], checkout: Path, arguments: list[str]
) -> None:
    playbooks = FakePlaybooks({})
    status, _, _ = run_cli(*arguments, playbooks=playbooks, engine=LabOfAnotherVersion(checkout, "0"))
    assert status != exit_codes.REFUSED
    assert len(playbooks.played) == 1


@pytest.mark.parametrize(("version", "shown"), [("0", True), (LAB_VERSION, False), (None, False)])
def test_lab_status_names_another_version(version: str | None, shown: bool) -> None:
    state = {"docker": True, "state": "up", "nodes": {}, "version": version, "expected_version": LAB_VERSION}
    assert any(line.startswith("TS-LAB-VERSION: ") for line in lab_module.lab_lines(state)) is shown


class WritingPlaybooks(FakePlaybooks):
    """Writes a file, as a playbook's modules do with this process's umask."""

    def __call__(self, repo: Path, name: str, **options: Any) -> RunResult:
        (repo / "written").write_text("secret")
        return super().__call__(repo, name, **options)


def test_what_a_verb_writes_is_the_users_alone(
    run_cli: Callable[..., tuple[int, list[str], str]], checkout: Path
) -> None:
    before = os.umask(0o022)
    try:
        assert run_cli("lab", "up", playbooks=WritingPlaybooks({}))[0] == 0
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert (checkout / "written").stat().st_mode & 0o777 == 0o600
    assert (checkout / ".trispark").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "arguments", [["lab", "up"], ["lab", "down"], ["demo"], ["play", "lab_up"], ["play", "lab_down"]], ids=" ".join
)
def test_second_verb_that_changes_the_lab_is_refused_with_the_first_ones_process(
    run_cli: Callable[..., tuple[int, list[str], str]],
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
) -> None:
    monkeypatch.setattr(lab_module, "LAB_WAIT_S", 0)
    monkeypatch.setattr(lab_module, "lab_state", lambda repo: {"docker": True})
    playbooks = FakePlaybooks({})
    (checkout / ".trispark").mkdir()
    with (checkout / ".trispark" / "lab.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711\n")
        lock.flush()
        status, _, err = run_cli(*arguments, playbooks=playbooks)
    assert (status, playbooks.played) == (3, [])
    assert "TS-LAB-BUSY" in err
    assert "process 4711" in err
    assert run_cli(*arguments, playbooks=playbooks)[0] in (0, 1)
    assert playbooks.played


def write_record(checkout: Path, name: str, content: str) -> None:
    directory = checkout / ".trispark" / "lab" / "records"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(content)


@pytest.mark.parametrize(
    "arguments",
    [
        ["records", "list", "--json"],
        ["records", "show", "1", "--json"],
        ["status", "--json"],
        ["play", "preflight", "--json"],
        ["demo", "--json"],
        ["demo", "--json", "--keep"],
    ],
    ids=" ".join,
)
def test_last_line_is_one_json_object_and_the_first_is_the_site(
    run_cli: Callable[..., tuple[int, list[str], str]], checkout: Path, arguments: list[str]
) -> None:
    write_record(checkout, "000001-abc.json", '{"seq": 1, "id": "abc", "kind": "boot"}')
    _, out, _ = run_cli(*arguments)
    assert out[0] == "site: lab"
    assert isinstance(json.loads(out[-1]), dict)


def test_error_with_json_ends_with_an_object_too(run_cli: Callable[..., tuple[int, list[str], str]]) -> None:
    status, out, err = run_cli("records", "show", "7", "--json")
    assert status == 2
    assert json.loads(out[-1])["error"]["id"] == "TS-RECORD-UNKNOWN"
    assert err.count("\n") == 1


def test_status_shows_nodes_and_says_4_for_an_unreachable_one(
    run_cli: Callable[..., tuple[int, list[str], str]],
) -> None:
    published = {
        "status": {
            "nodes": {
                "spark0": {"reachable": True, "current": "g1", "engine": None, "good": []},
                "spark2": {"reachable": False, "reason": "no route"},
            }
        }
    }
    playbooks = FakePlaybooks({"status": result("status", published=published, unreachable=("spark1",))})
    status, out, _ = run_cli("status", "--json", playbooks=playbooks)
    assert status == 4
    assert "spark1  unreachable" in out
    nodes = published["status"]["nodes"]
    assert list(status_lines(nodes))[:3] == [
        "DEGRADED: no answer from spark2; of the others: no engine on any node, current g1",
        "spark0  no engine",
        "spark2  no answer: no route",
    ]
    assert json.loads(out[-1])["unreachable"] == ["spark1", "spark2"]


def test_status_shows_damage_and_what_was_begun_and_says_1(
    run_cli: Callable[..., tuple[int, list[str], str]],
) -> None:
    nodes: dict[str, Any] = {
        "spark0": {"reachable": True, "current": "g1", "engine": None, "good": [], "problems": []},
        "spark1": {"reachable": True, "problems": ["generation g1: SHA256SUMS differ"], "pending": ["stage"]},
        "spark2": {
            "reachable": True,
            "current": "g1",
            "engine": None,
            "problems": [],
            "pending": [{"verb": "activate", "time": "2026-01-01T10:00:00Z"}],
        },
    }
    playbooks = FakePlaybooks({"status": result("status", published={"status": {"nodes": nodes}})})
    status, _, _ = run_cli("status", playbooks=playbooks)
    assert status == 1
    lines = list(status_lines(nodes))
    assert "spark1  damaged: generation g1: SHA256SUMS differ" in lines
    assert "spark1  begun and not ended: stage" in lines
    assert "spark2  begun and not ended: activate (since 2026-01-01T10:00:00Z)" in lines
    del nodes["spark1"]
    assert run_cli("status", playbooks=playbooks)[0] == 0
    nodes["spark1"] = {"reachable": False, "reason": "no agent"}
    assert run_cli("status", playbooks=playbooks)[0] == 4
    assert "spark1  no answer: no agent" in status_lines(nodes)


def test_a_node_whose_agent_refused_shows_its_line_in_place_of_a_state(
    run_cli: Callable[..., tuple[int, list[str], str]],
) -> None:
    line = "TS-AGENT-PROTOCOL: controller and agent are of different versions; where: agent 0.1.0"
    refused = {"failed": False, "check_id": "TS-AGENT-PROTOCOL", "msg": line, "answer": {"ok": False, "error": {}}}
    silent = {"failed": False, "check_id": "TS-AGENT-MISSING", "msg": "TS-AGENT-MISSING: it cannot be run"}
    answered = {"answer": {"ok": True, "current": "g1", "engine": None, "good": []}}
    report = reporting.status({"spark0": answered, "spark1": refused, "spark2": silent})
    published = report.published
    playbooks = FakePlaybooks({"status": result("status", published=published)})
    assert run_cli("status", playbooks=playbooks)[0] == 1
    assert report.lines[:4] == [
        "BROKEN: the agent of spark1 refuses or fails; the agent of spark2 refuses or fails",
        "spark0  no engine",
        f"spark1  {line}",
        "spark2  TS-AGENT-MISSING: it cannot be run",
    ]
    answers = reporting.node_answers(published)
    assert [node for node, answer in answers.items() if answer] == ["spark0"]


def test_a_node_that_cannot_be_reached_is_told_from_one_that_refused() -> None:
    results = {"spark0": {"unreachable": True, "msg": "no route\n to host"}, "spark1": {}}
    states = reporting.node_states(reporting.status(results).published)
    assert states["spark0"] == {"reachable": False, "reason": "no route to host"}
    assert not states["spark1"]["reachable"]


def test_a_node_that_does_not_answer_in_time_is_one_that_cannot_be_reached() -> None:
    late = {"failed": True, "check_id": "TS-AGENT-LATE", "msg": "TS-AGENT-LATE: status did not end", "answer": {}}
    states = reporting.node_states(reporting.status({"spark1": late}).published)
    assert states["spark1"] == {"reachable": False, "reason": "TS-AGENT-LATE: status did not end"}


def test_records_are_listed_by_number_with_outcome_and_file(checkout: Path) -> None:
    write_record(checkout, "000010-t2.json", '{"seq": 10, "id": "t2", "kind": "trial", "outcome": {"verdict": "KEEP"}}')
    write_record(checkout, "000002-b1.json", '{"seq": 2, "id": "b1", "kind": "boot", "outcome": {"state": "valid"}}')
    cache = record_cache(checkout, "lab")
    shown = [summary(cache, record, checkout) for record in cache.list()]
    assert [(one["seq"], one["outcome"]) for one in shown] == [(2, "valid"), (10, "KEEP")]
    assert shown[0]["path"] == ".trispark/lab/records/000002-b1.json"


@pytest.mark.parametrize("content", ["{", "[]"])
def test_record_that_is_no_object_is_named(checkout: Path, content: str) -> None:
    write_record(checkout, "1-a.json", content)
    with pytest.raises(TrisparkError, match=r"1-a\.json") as refused:
        record_cache(checkout, "lab").list()
    assert refused.value.id == "TS-RECORD-READ"


def test_failed_play_prints_its_error_in_one_line(run_cli: Callable[..., tuple[int, list[str], str]]) -> None:
    playbooks = FakePlaybooks({"boot": result("boot", status="failed", failures=(FAILED,), changed=True)})
    status, out, err = run_cli("play", "boot", playbooks=playbooks)
    assert status == 1
    assert err.splitlines()[0] == "trispark: spark0: TS-A-B: no"
    assert "     1.2 s  phase of boot" in out


def test_an_interrupt_of_work_on_shards_says_what_goes_on_there(
    run_cli: Callable[..., tuple[int, list[str], str]],
) -> None:
    """By the name of the role's task, which is the one that may leave a job on a node."""
    name = yaml.safe_load((ROOT / "roles/engram/tasks/main.yml").read_text(encoding="utf-8"))[0]["name"]
    interrupted = replace(result("shards", status="interrupted"), last_task=f"engram : {name}")
    _, _, err = run_cli("play", "shards", playbooks=FakePlaybooks({"shards": interrupted}))
    assert INTERRUPTED in err
    _, _, err = run_cli("play", "boot", playbooks=FakePlaybooks({"boot": result("boot", status="interrupted")}))
    assert INTERRUPTED not in err


def test_interrupted_play_says_where_and_how_to_go_on(run_cli: Callable[..., tuple[int, list[str], str]]) -> None:
    status, _, err = run_cli("play", "boot", playbooks=FakePlaybooks({"boot": result("boot", status="interrupted")}))
    assert status == 130
    assert err.startswith("trispark: TS-PLAY-INTERRUPTED: boot was interrupted in phase 'P', task 'T'; ")
    assert "./trispark status" in err


GOOD = {
    "stage_a": result(
        "stage_a",
        published={
            "stage_a": {
                "packed_ok": True,
                "boot_id": "b1",
                "c1_tok_s": 10.5,
                "c4_tok_s": 30.0,
                "record": ".trispark/lab/records/1-b1.json",
            },
        },
    ),
    "stage_c": result(
        "stage_c",
        published={
            "trial": {"id": "t1", "feature": "wo_a", "verdict": "INCONCLUSIVE"},
            "records": [".trispark/lab/records/2-b2.json", ".trispark/lab/records/3-b3.json"],
        },
    ),
    "rollback": result(
        "rollback",
        published={"rollback": {"seconds": 5.5, "verified": True, "record": ".trispark/lab/records/4-b4.json"}},
    ),
}
ORDER = ["lab_up", "stage_a", "stage_c", "demo_incident", "rollback", "lab_down"]


def demo(
    checkout: Path, playbooks: FakePlaybooks, *, keep: bool = False, prepare: Callable[[], None] = lambda: None
) -> tuple[int, Demo, str]:
    out = io.StringIO()
    terminal = Terminal(out, out)
    ticks = iter(range(1000))
    subject = Demo(
        checkout, Player(checkout, "lab", terminal, run=playbooks), prepare, keep=keep, now=lambda: float(next(ticks))
    )
    return subject.run(), subject, out.getvalue()


def test_demo_that_verified_everything(checkout: Path) -> None:
    playbooks = FakePlaybooks(GOOD)
    status, subject, text = demo(checkout, playbooks)
    assert status == 0
    assert playbooks.names == ORDER
    assert playbooks.played[2] == ("stage_c", "lab", {"feature": "wo_a"})
    report = subject.report.as_json()
    assert report.pop("wall_s") > 0
    assert report == {
        "stage_a": {"packed_ok": True, "boot_id": "b1", "c1_tok_s": 10.5, "c4_tok_s": 30.0},
        "trial": {"feature": "wo_a", "verdict": "INCONCLUSIVE"},
        "rollback": {"seconds": 5.5, "verified": True},
        "records": [f".trispark/lab/records/{n}-b{n}.json" for n in (1, 2, 3, 4)],
    }
    assert "record     .trispark/lab/records/3-b3.json" in text
    assert text.splitlines()[-1] == "report: ./trispark report t1"


def test_demo_keeps_the_lab_when_asked(checkout: Path) -> None:
    playbooks = FakePlaybooks(GOOD)
    status, _, text = demo(checkout, playbooks, keep=True)
    assert (status, playbooks.names) == (0, ORDER[:-1])
    assert "the lab stays" in text


@pytest.mark.parametrize("failing", ORDER[:-1])
def test_demo_removes_the_lab_after_a_failure_and_says_so(checkout: Path, failing: str) -> None:
    failed = result(failing, status="failed", failures=(FAILED,))
    playbooks = FakePlaybooks({**GOOD, failing: failed})
    status, _, text = demo(checkout, playbooks)
    assert status == 1
    assert playbooks.names == [*ORDER[: ORDER.index(failing) + 1], "lab_down"]
    assert "remove the lab (also after a failure" in text


def test_demo_fails_when_the_lab_cannot_be_removed(checkout: Path) -> None:
    failed = result("lab_down", status="failed", failures=(FAILED,), changed=True)
    assert demo(checkout, FakePlaybooks({**GOOD, "lab_down": failed}))[0] == 1


def test_interrupted_demo_leaves_the_lab_and_says_how_to_remove_it(checkout: Path) -> None:
    playbooks = FakePlaybooks({**GOOD, "stage_a": result("stage_a", status="interrupted")})
    status, _, text = demo(checkout, playbooks)
    assert (status, playbooks.names) == (130, ["lab_up", "stage_a"])
    assert "TS-PLAY-INTERRUPTED: stage_a was interrupted in phase 'P', task 'T'" in text
    assert "./trispark lab down removes it" in text


def test_too_little_disk_is_found_before_anything_is_installed_or_written(tmp_path: Path) -> None:
    machine = ScriptedMachine(free=lab_module.DOCKER_DISK_BYTES - 1)
    with pytest.raises(TrisparkError, match=r"TS-HOST-DISK: .*/var/lib/docker") as refused:
        lab_module.prepare_machine(tmp_path, pytest.fail, machine)
    assert exit_codes.of_error(refused.value) == exit_codes.REFUSED
    assert machine.commands == []
    assert machine.files == {}
    assert list(tmp_path.iterdir()) == []


def test_demo_that_cannot_prepare_touches_nothing(checkout: Path) -> None:
    def refuse() -> None:
        raise TrisparkError("TS-HOST-DISK", "too little free disk", "/", "6 GB", "1 GB", "make room")

    playbooks = FakePlaybooks(GOOD)
    status, _, text = demo(checkout, playbooks, prepare=refuse)
    assert (status, playbooks.names) == (3, [])
    assert "TS-HOST-DISK" in text


@pytest.mark.parametrize(
    ("playbook", "part", "name", "value"),
    [
        ("stage_a", "stage_a", "packed_ok", False),
        ("stage_a", "stage_a", "packed_ok", "true"),
        ("stage_a", "stage_a", "boot_id", ""),
        ("stage_a", "stage_a", "c1_tok_s", 0),
        ("stage_a", "stage_a", "c4_tok_s", None),
        ("stage_c", "trial", "feature", "other"),
        ("stage_c", "trial", "verdict", None),
        ("rollback", "rollback", "verified", False),
        ("rollback", "rollback", "seconds", None),
    ],
)
def test_demo_is_not_ok_when_anything_is_unverified(
    checkout: Path, playbook: str, part: str, name: str, value: object
) -> None:
    published: dict[str, Any] = {**GOOD[playbook].published, part: {**GOOD[playbook].published[part], name: value}}
    playbooks = FakePlaybooks({**GOOD, playbook: result(playbook, published=published)})
    status, _, text = demo(checkout, playbooks)
    assert status == 1
    assert f"{part}.{name}={value!r}" in text
    assert playbooks.names == ORDER


def test_plain_progress_says_one_line_a_phase() -> None:
    out = io.StringIO()
    shown = PlainProgress(Terminal(out, out))
    for number in range(100):
        shown.task_started(f"task {number}")
        shown.waiting_for(("spark0",))
    shown.phase_started("Boot")
    shown.note(("two lines", "of one message"))
    shown.phase_ended("Boot", 12.34)
    assert out.getvalue() == ("            > two lines\n              of one message\n    12.3 s  Boot\n")


def event(kind: str, second: float, **data: Any) -> dict[str, Any]:
    return {"event": kind, "created": f"2026-01-01T10:00:{second:09.6f}+00:00", "event_data": data}


# As ansible-runner 2.4.3 gave them for a boot on three nodes, shortened to the keys that are read; and the live line
# at the moment of the event.
BOOT = [
    (event("playbook_on_play_start", 1, name="Boot"), "0 s  Boot"),
    (event("playbook_on_task_start", 1, task="Start"), "0 s  Boot · Start"),
    (event("runner_on_start", 1, host="spark0"), "0 s  Boot · Start · waiting for spark0 (0 s)"),
    (event("runner_on_start", 1, host="spark1"), "0 s  Boot · Start · waiting for spark0, spark1 (0 s)"),
    (event("runner_on_ok", 3, host="spark0", res={}), "2 s  Boot · Start · waiting for spark1 (2 s)"),
    (event("runner_on_ok", 4, host="spark1", res={}), "3 s  Boot · Start"),
    (event("playbook_on_task_start", 5, task="Wait until it serves"), "4 s  Boot · Wait until it serves"),
    (event("runner_on_start", 5, host="spark0"), "4 s  Boot · Wait until it serves · waiting for spark0 (0 s)"),
    (event("runner_retry", 31, host="spark0", res={}), "30 s  Boot · Wait until it serves · waiting for spark0 (26 s)"),
    (event("runner_on_unreachable", 33, host="spark0", res={}), "32 s  Boot · Wait until it serves"),
    (event("playbook_on_play_start", 34, name="Report"), "0 s  Report"),
]


def test_live_line_has_phase_task_seconds_and_the_nodes_that_are_waited_for() -> None:
    from rich.console import Console

    out = io.StringIO()
    now = 0.0
    live = LiveProgress(Console(file=out, force_terminal=True, width=120, _environ={}), now=lambda: now)
    events = RunEvents(live)
    assert live.line() == ""
    for one, expected in BOOT:
        now = float(one["created"][17:26])
        events.add(one)
        assert live.line() == expected
    now = 34.5
    events.close()
    assert live.line() == ""
    ended = [line for line in out.getvalue().splitlines() if line.strip()]
    assert ended == ["    33.0 s  Boot", "     0.0 s  Report"]


PLAYBOOKS = Path(__file__).resolve().parents[3] / "playbooks"


def playbook_headers() -> dict[str, str]:
    """First comment line of each playbook."""
    found = {}
    for path in sorted(PLAYBOOKS.glob("*.yml")):
        lines = [line for line in path.read_text().splitlines() if line != "---"]
        if path.name != "ansible.cfg":
            found[path.stem] = lines[0]
    return found


def test_each_playbook_says_what_it_is() -> None:
    for name, line in playbook_headers().items():
        assert line.startswith("# "), name
        assert len(line) > 20, name
        if line.startswith("# Verb: "):
            assert line.startswith(f"# Verb: {name}. "), name


def test_playbooks_that_may_guess_the_site_are_those_that_say_they_change_nothing() -> None:
    says = {name for name, line in playbook_headers().items() if "Read-only" in line or "touches no node" in line}
    assert says == READ_ONLY


@pytest.mark.parametrize(("everything", "left_out"), [(False, True), (True, False)])
def test_pytest_call(everything: bool, left_out: bool) -> None:
    argv = pytest_argv(Path("/v/python"), everything=everything, arguments=["tests/unit", "-x"])
    assert argv[:4] == ["/v/python", "-m", "pytest", "--durations=15"]
    assert ("not slow" in argv) is left_out
    assert argv[-2:] == ["tests/unit", "-x"]


@pytest.mark.parametrize(("cores", "processes"), [(1, 2), (2, 2), (3, 3), (64, 4)])
def test_tests_run_in_as_many_processes_as_they_can_use(cores: int, processes: int) -> None:
    argv = pytest_argv(Path("/v/python"), everything=False, arguments=[], cores=cores)
    assert argv[argv.index("-n") + 1] == str(processes)


# -- status --watch ----------------------------------------------------------------------------------------------------


def watched(*, engine: str = "running", rest: str = "successful") -> FakePlaybooks:
    nodes = {
        "spark0": {
            "reachable": True,
            "current": "g1",
            "engine": {"state": engine, "health": "ready", "rank": 0, "generation": "g1", "boot_id": "b1", "epoch": 1},
            "canary": {"ok": True, "seconds": 0.1, "why": ""},
        }
    }
    return FakePlaybooks({"status": result("status", status=rest, published={"status": {"nodes": nodes}})})


@pytest.mark.parametrize(("engine", "status", "state"), [("running", 0, "SERVING"), ("exited", 1, "BROKEN")])
def test_a_watch_ends_with_the_last_state(
    run_cli: Callable[..., tuple[int, list[str], str]], engine: str, status: int, state: str
) -> None:
    found, out, _ = run_cli("status", "--watch", "--for", "0", "--json", playbooks=watched(engine=engine))
    assert found == status
    assert any(state in line for line in out[1:-1])
    assert not any("phase of status" in line for line in out), "a look shows no progress"
    assert json.loads(out[-1])["fleet"]["state"] == state


def test_a_watch_that_is_interrupted_ends_with_130(run_cli: Callable[..., tuple[int, list[str], str]]) -> None:
    assert run_cli("status", "--watch", playbooks=watched(rest="interrupted"))[0] == 130


def test_a_watch_that_learns_nothing_fails_and_says_why(run_cli: Callable[..., tuple[int, list[str], str]]) -> None:
    playbooks = FakePlaybooks({"status": result("status", status="failed", failures=(FAILED,))})
    status, out, _ = run_cli("status", "--watch", "--for", "0", playbooks=playbooks)
    assert (status, out[-1].endswith("no look: TS-A-B: no")) == (1, True)


@pytest.mark.parametrize("arguments", [("--for", "3"), ("--watch", "--interval", "0"), ("--watch", "--for", "-1")])
def test_a_watch_that_cannot_be_is_a_usage_error(
    run_cli: Callable[..., tuple[int, list[str], str]], arguments: tuple[str, ...]
) -> None:
    assert run_cli("status", *arguments)[0] == 2


def test_the_looks_of_a_watch_leave_no_runs(checkout: Path, run_cli: Callable[..., tuple[int, list[str], str]]) -> None:
    """Fifty runs are kept, and a watch makes that many in minutes."""
    playbooks = watched()
    kept = checkout / ".trispark" / "runs" / "kept"
    directory = checkout / ".trispark" / "runs" / "one"
    for path in (kept, directory):
        path.mkdir(parents=True)
    playbooks.results["status"] = replace(playbooks.results["status"], directory=directory)
    assert run_cli("status", "--watch", "--for", "0", playbooks=playbooks)[0] == 0
    assert (kept.exists(), directory.exists()) == (True, False)
