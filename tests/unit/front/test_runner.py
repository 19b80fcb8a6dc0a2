"""Real runs of ansible-playbook through ansible-runner, on local connections in a checkout of the test's own."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from trispark.errors import TrisparkError
from trispark.run_events import RunEvents
from trispark.runner import (
    INTERRUPT_GRACE_S,
    KEPT_RUNS,
    Interrupts,
    Limit,
    RunResult,
    playbook_environment,
    prune_runs,
    run_playbook,
)

TOOLS = Path(sys.executable).parent

PLAYBOOKS = {
    "good": """
- name: First
  hosts: sparks
  gather_facts: false
  tasks:
    - name: Look
      ansible.builtin.debug:
        msg: "{{ feature | default('none') }}"
    - name: Publish
      ansible.builtin.set_stats:
        data:
          trispark:
            feature: "{{ feature | default('none') }}"
            is_text: "{{ feature is string }}"
            key_checking: "{{ lookup('ansible.builtin.config', 'HOST_KEY_CHECKING') }}"
            site: "{{ lookup('ansible.builtin.env', 'TRISPARK_SITE') }}"
        per_host: false
      run_once: true
""",
    "bad": """
- name: Break
  hosts: sparks
  gather_facts: false
  tasks:
    - name: Fail here
      ansible.builtin.fail:
        msg: "TS-TEST-BROKEN: it broke, check={{ ansible_check_mode }}"
""",
    "syntax": """
- name: Wrong
  hosts: sparks
  taskz: []
""",
    "interrupted": """
- name: Slow
  hosts: spark0
  gather_facts: false
  tasks:
    - name: Interrupt whoever started this and hang
      ansible.builtin.command: sh -c 'kill -INT {{ caller }}; exec sleep 600'
      changed_when: false
""",
    "slow": """
- name: Slow
  hosts: spark0
  gather_facts: false
  tasks:
    - name: Hang
      ansible.builtin.command: sleep 600
      changed_when: false
""",
}

INVENTORY = f"""
sparks:
  hosts:
    spark0: {{ansible_connection: local, ansible_python_interpreter: "{sys.executable}"}}
    spark1: {{ansible_connection: local, ansible_python_interpreter: "{sys.executable}"}}
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for directory in ("playbooks", "inventory/lab"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "ansible.cfg").write_text("[defaults]\ngathering = explicit\n")
    (tmp_path / "inventory/lab/hosts.yml").write_text(INVENTORY)
    for name, text in PLAYBOOKS.items():
        (tmp_path / "playbooks" / f"{name}.yml").write_text(text)
    monkeypatch.setenv("PATH", f"{TOOLS}:{os.environ['PATH']}")
    monkeypatch.setenv("SECRET_OF_THE_CALLER", "do-not-keep")
    monkeypatch.delenv("ANSIBLE_HOST_KEY_CHECKING", raising=False)
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    return tmp_path


def play(checkout: Path, name: str, **options: object) -> RunResult:
    return run_playbook(checkout, name, site="lab", **options)  # type: ignore[arg-type]


def test_run_gives_published_results_and_keeps_its_events(checkout: Path) -> None:
    result = play(checkout, "good", extra={"feature": "007"})
    assert (result.rc, result.status, result.ok) == (0, "successful", True)
    assert result.published == {
        "feature": "007",
        "is_text": True,
        "key_checking": True,
        "site": "lab",
    }
    assert [entry.name for entry in result.plays] == ["First"]
    assert result.stats["ok"] == {"spark0": 2, "spark1": 1}
    assert result.directory == checkout / ".trispark" / "runs" / result.run_id
    assert len(list((result.directory / "job_events").glob("*.json"))) > 5
    kept = "".join(path.read_text() for path in result.directory.rglob("*") if path.is_file())
    assert "do-not-keep" not in kept
    assert json.loads((result.directory / "command").read_text())["cwd"] == str(checkout)


def test_run_is_private_and_only_the_newest_are_kept(checkout: Path) -> None:
    runs = checkout / ".trispark" / "runs"
    for number in range(KEPT_RUNS + 5):
        (runs / f"20200101T0000{number:02}Z-good-abc" / "job_events").mkdir(parents=True)
    (runs / "notes-of-somebody").mkdir()
    result = play(checkout, "good")
    kept = sorted(path.name for path in runs.iterdir())
    assert len(kept) == KEPT_RUNS + 1
    assert kept[0] == "20200101T000006Z-good-abc"
    assert kept[-2:] == [result.run_id, "notes-of-somebody"]
    for directory in (checkout / ".trispark", runs):
        assert directory.stat().st_mode & 0o777 == 0o700


def test_prune_keeps_what_is_no_run_and_what_is_few(tmp_path: Path) -> None:
    for name in ("20200101T000000Z-a-1", "20200102T000000Z-a-1", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "20190101T000000Z-a-1").write_text("a file")
    assert prune_runs(tmp_path, 2) == []
    assert prune_runs(tmp_path, 1) == ["20200101T000000Z-a-1"]
    assert prune_runs(tmp_path / "absent", 1) == []


def test_compiled_python_is_kept_where_the_front_end_keeps_its_own(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told to write no bytecode, ansible-playbook would compile all of Ansible anew in each run."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    cache = tmp_path / "compiled"
    for prefix, kept_out, there in ((None, True, False), (str(cache), True, False), (str(cache), False, True)):
        monkeypatch.setattr(sys, "pycache_prefix", prefix)
        monkeypatch.setattr(sys, "dont_write_bytecode", kept_out)
        environment = playbook_environment(checkout, "lab", "x")
        assert ("PYTHONPYCACHEPREFIX" in environment, "PYTHONDONTWRITEBYTECODE" in environment) == (there, there)
    played = play(checkout, "good", extra={"feature": "x"})
    assert played.ok, played.failures
    assert list(cache.rglob("ansible/cli/playbook.*.pyc"))


def test_check_mode_reaches_the_playbook(checkout: Path) -> None:
    result = play(checkout, "bad", check=True, diff=True)
    assert {failure.message for failure in result.failures} == {"TS-TEST-BROKEN: it broke, check=True"}
    assert {"--check", "--diff"} <= set(json.loads((result.directory / "command").read_text())["command"])


def test_failure_is_a_result(checkout: Path) -> None:
    result = play(checkout, "bad")
    assert (result.status, result.changed) == ("failed", False)
    assert {(failure.node, failure.task, failure.message) for failure in result.failures} == {
        ("spark0", "Fail here", "TS-TEST-BROKEN: it broke, check=False"),
        ("spark1", "Fail here", "TS-TEST-BROKEN: it broke, check=False"),
    }


def test_playbook_that_cannot_be_read_says_why(checkout: Path) -> None:
    result = play(checkout, "syntax")
    assert result.status == "failed"
    assert [failure.node for failure in result.failures] == ["localhost"]
    assert "taskz" in result.failures[0].message


def test_unknown_playbook_is_refused_with_the_list(checkout: Path) -> None:
    with pytest.raises(TrisparkError, match="bad, good, interrupted, slow, syntax") as refused:
        play(checkout, "nope")
    assert refused.value.id == "TS-PLAY-UNKNOWN"
    assert not (checkout / ".trispark").exists()


def test_interrupt_ends_ansible_by_itself_and_gives_the_signals_back(checkout: Path) -> None:
    before = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    result = play(checkout, "interrupted", extra={"caller": str(os.getpid())})
    assert result.status == "interrupted"
    # 99 is ansible-playbook's own word for "interrupted"; killed it would be 254.
    assert result.rc == 99
    assert (result.last_play, result.last_task) == ("Slow", "Interrupt whoever started this and hang")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_run_that_does_not_end_is_ended_and_has_failed(checkout: Path) -> None:
    result = play(checkout, "slow", deadline_s=5)
    assert (result.status, result.ok) == ("failed", False)
    assert result.failures[0].message.startswith("TS-PLAY-LATE: slow did not end in time")
    assert result.seconds < 5 + INTERRUPT_GRACE_S + 30


def test_a_deadline_that_passes_while_a_person_ends_the_run_is_not_the_cause() -> None:
    subject, clock, _ = interrupts(42)
    limit = Limit(subject, clock.now + INTERRUPT_GRACE_S / 4, clock)
    subject.handle()
    clock.now += INTERRUPT_GRACE_S / 2
    assert (limit.must_kill(), limit.passed) == (False, False)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def interrupts(pid: int | None) -> tuple[Interrupts, Clock, list[tuple[int, int]]]:
    events = RunEvents()
    events.pid = pid
    clock, killed = Clock(), []

    def kill(process: int, number: int) -> None:
        killed.append((process, number))

    return Interrupts(events, kill, clock), clock, killed


def test_first_interrupt_asks_and_the_grace_time_bounds_it() -> None:
    subject, clock, killed = interrupts(42)
    assert not subject.must_kill()
    subject.handle()
    assert killed == [(42, signal.SIGINT)]
    clock.now += INTERRUPT_GRACE_S
    assert (subject.interrupted, subject.must_kill()) == (True, False)
    clock.now += 0.1
    assert subject.must_kill()


def test_second_interrupt_insists() -> None:
    subject, _, killed = interrupts(42)
    subject.handle()
    subject.handle()
    assert subject.must_kill()
    assert len(killed) == 1


def test_a_playbook_that_goes_on_after_it_was_asked_to_end_is_killed() -> None:
    """Ansible asks itself once; an exception that a finaliser swallowed is not raised again."""
    events = RunEvents()
    events.pid = 42
    subject = Interrupts(events, lambda process, number: None, Clock())
    task = {"event": "playbook_on_task_start", "event_data": {"task": "x"}}
    for _ in range(10):
        events.add(task)
    subject.handle()
    for _ in range(2):
        events.add(task)
    assert not subject.must_kill(), "they may have begun before"
    events.add(task)
    assert subject.must_kill()


def test_interrupt_before_ansible_has_said_anything_kills() -> None:
    subject, _, killed = interrupts(None)
    subject.handle()
    assert subject.must_kill()
    assert killed == []
