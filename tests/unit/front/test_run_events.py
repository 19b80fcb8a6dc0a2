"""The fold of ansible-runner events: phases with seconds, failures in one line, published results."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.run_events import FailedEvent, PlaySeconds, RunEvents, error_lines, failure_message


class Notes:
    """An observer that writes down what it is told."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def phase_started(self, name: str) -> None:
        self.seen.append(("phase", name))

    def task_started(self, name: str) -> None:
        self.seen.append(("task", name))

    def waiting_for(self, nodes: tuple[str, ...]) -> None:
        self.seen.append(("waiting", nodes))

    def note(self, lines: tuple[str, ...]) -> None:
        self.seen.append(("note", *lines))

    def phase_ended(self, name: str, seconds: float) -> None:
        self.seen.append(("ended", name, round(seconds, 3)))


def event(kind: str, second: float, **data: Any) -> dict[str, Any]:
    return {"event": kind, "pid": 42, "created": f"2026-01-01T10:00:{second:09.6f}+00:00", "event_data": data}


def host_event(kind: str, second: float, host: str, task: str = "T", **data: Any) -> dict[str, Any]:
    return event(kind, second, host=host, task=task, **data)


# As ansible-runner 2.4.3 gave them for a playbook of two plays, shortened to the keys that are read.
RECORDED = [
    event("playbook_on_start", 0, playbook="good.yml"),
    event("playbook_on_play_start", 1, name="Look at the nodes", pattern="sparks"),
    event("playbook_on_task_start", 1.1, task="Say something", name="Say something"),
    host_event("runner_on_start", 1.2, "spark0"),
    host_event("runner_on_start", 1.2, "spark1"),
    host_event("runner_on_ok", 1.5, "spark1", res={"changed": True}, task_action="ansible.builtin.command"),
    host_event("runner_on_ok", 1.75, "spark0", res={"changed": False}, task_action="ansible.builtin.command"),
    event("playbook_on_play_start", 2, name="Report", pattern="localhost"),
    event("playbook_on_task_start", 2, task="Show"),
    host_event("runner_on_start", 2, "localhost"),
    host_event(
        "runner_on_ok", 2.1, "localhost", task_action="ansible.builtin.debug", res={"msg": ["one", "two\nthree"]}
    ),
    event(
        "playbook_on_stats",
        3.5,
        ok={"spark0": 1, "localhost": 2},
        changed={"spark1": 1},
        dark={},
        failures={},
        artifact_data={"trispark": {"stage_a": {"packed_ok": True}}, "other": 1},
    ),
]


def folded(events: list[dict[str, Any]], observer: Notes | None = None) -> RunEvents:
    state = RunEvents(observer or Notes())
    for one in events:
        state.add(one)
    state.close()
    return state


def test_recorded_run() -> None:
    notes = Notes()
    state = folded(RECORDED, notes)
    assert state.plays == [PlaySeconds("Look at the nodes", 1.0), PlaySeconds("Report", 1.5)]
    assert state.published == {"stage_a": {"packed_ok": True}}
    assert state.stats["ok"] == {"spark0": 1, "localhost": 2}
    assert (state.changed, state.failures, state.unreachable, state.pid) == (True, [], set(), 42)
    assert notes.seen == [
        ("phase", "Look at the nodes"),
        ("task", "Say something"),
        ("waiting", ("spark0",)),
        ("waiting", ("spark0", "spark1")),
        ("waiting", ("spark0",)),
        ("waiting", ()),
        ("ended", "Look at the nodes", 1.0),
        ("phase", "Report"),
        ("task", "Show"),
        ("waiting", ("localhost",)),
        ("waiting", ()),
        ("note", "one", "two", "three"),
        ("ended", "Report", 1.5),
    ]


def test_notes_do_not_flood() -> None:
    notes = Notes()
    result = {"msg": [f"line {number}" for number in range(1000)]}
    folded([host_event("runner_on_ok", 1, "localhost", task_action="debug", res=result)], notes)
    assert [len(seen) - 1 for seen in notes.seen if seen[0] == "note"] == [400]


def test_a_report_of_many_lines_is_shown_whole() -> None:
    """That of a stage has a line for each rank, layer and metric, several boots of a stage before it."""
    notes = Notes()
    events = [
        host_event(
            "runner_on_ok",
            task,
            "localhost",
            task_action="debug",
            res={"msg": [f"task {task} line {number}" for number in range(15)]},
        )
        for task in range(5)
    ]
    folded(events, notes)
    assert sum(len(seen) - 1 for seen in notes.seen if seen[0] == "note") == 75


DEBUG = "ansible.builtin.debug"


@pytest.mark.parametrize(
    ("events", "shown"),
    [
        pytest.param(
            [
                host_event("runner_item_on_ok", 1, "spark0", task_action=DEBUG, res={"msg": "an item"}),
                host_event(
                    "runner_on_ok",
                    1,
                    "spark0",
                    task_action=DEBUG,
                    res={"msg": "All items completed", "results": [{"msg": "an item"}]},
                ),
            ],
            [],
            id="loop",
        ),
        pytest.param(
            [host_event("runner_on_ok", 1, node, task_action=DEBUG, res={"msg": "same"}) for node in ("a", "b")],
            [("note", "same")],
            id="same-message-of-two-nodes",
        ),
        pytest.param(
            [
                host_event("runner_on_ok", 1, "a", task_action=DEBUG, res={"msg": "same"}),
                event("playbook_on_task_start", 2, task="Other"),
                host_event("runner_on_ok", 2, "a", task_action=DEBUG, res={"msg": "same"}),
            ],
            [("note", "same"), ("note", "same")],
            id="same-message-of-two-tasks",
        ),
        pytest.param(
            [host_event("runner_on_ok", 1, "a", task_action="ansible.builtin.command", res={"msg": "no"})],
            [],
            id="other-module",
        ),
    ],
)
def test_only_messages_of_debug_are_shown(events: list[dict[str, Any]], shown: list[tuple[str, ...]]) -> None:
    notes = Notes()
    folded(events, notes)
    assert [seen for seen in notes.seen if seen[0] == "note"] == shown


def test_interrupted_run_still_has_its_open_play() -> None:
    state = folded(RECORDED[:6])
    assert state.plays == [PlaySeconds("Look at the nodes", 0.5)]
    assert (state.last_play, state.last_task) == ("Look at the nodes", "Say something")


@pytest.mark.parametrize(
    ("kind", "data", "failures", "unreachable"),
    [
        pytest.param("runner_on_failed", {"res": {"msg": "x"}}, ["x"], set(), id="failed"),
        pytest.param("runner_on_failed", {"res": {"msg": "x"}, "ignore_errors": True}, [], set(), id="ignored"),
        pytest.param("runner_on_unreachable", {"res": {"msg": "no route"}}, ["no route"], {"spark0"}, id="unreachable"),
        pytest.param("runner_on_skipped", {}, [], set(), id="skipped"),
    ],
)
def test_ends_of_a_task(kind: str, data: dict[str, Any], failures: list[str], unreachable: set[str]) -> None:
    state = folded([host_event(kind, 1, "spark0", **data)])
    assert [failure.message for failure in state.failures] == failures
    assert state.unreachable == unreachable


def test_failure_carries_check_id_and_change() -> None:
    res = {"msg": "TS-GATE-FAILED: no", "check_id": "engram.packed", "changed": True}
    state = folded([host_event("runner_on_failed", 1, "spark2", task="Gates", res=res)])
    assert state.failures == [FailedEvent("spark2", "Gates", "TS-GATE-FAILED: no", "engram.packed")]
    assert state.changed


@pytest.mark.parametrize(
    ("res", "expected"),
    [
        pytest.param({"msg": "TS-A-B: what\n  where"}, "TS-A-B: what where", id="one-line"),
        pytest.param({"msg": "Task failed: TS-A-B: what"}, "TS-A-B: what", id="ansible-prefix"),
        pytest.param({"msg": "Task failed: Action failed: TS-A-B: x"}, "TS-A-B: x", id="two-prefixes"),
        pytest.param({"msg": "the note TS-A-B is about"}, "the note TS-A-B is about", id="id-inside-a-sentence"),
        pytest.param(
            {"msg": "One or more items failed", "results": [{"msg": "good"}, {"failed": True, "msg": "TS-A-B: 2"}]},
            "TS-A-B: 2",
            id="item-of-a-loop",
        ),
        pytest.param(
            {"msg": "non-zero return code", "stdout": "x", "stderr": "a\nno such file\n"},
            "non-zero return code: no such file",
            id="command",
        ),
        pytest.param({"stdout": "only this\n"}, "only this", id="no-message"),
        pytest.param({}, "failed without a message", id="nothing"),
    ],
)
def test_failure_message(res: dict[str, Any], expected: str) -> None:
    assert failure_message(res) == expected


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["msg", "stderr", "stdout", "censored", "x"]), _JSON))
def test_failure_message_is_one_line_whatever_a_module_says(res: dict[str, Any]) -> None:
    message = failure_message(res)
    assert message
    assert len(message.splitlines()) == 1


@given(
    st.lists(
        st.fixed_dictionaries(
            {"event": st.sampled_from(sorted({one["event"] for one in RECORDED} | {"runner_on_failed", "verbose"}))},
            optional={"event_data": _JSON, "created": st.text() | st.none(), "pid": st.integers() | st.none()},
        ),
        max_size=6,
    )
)
def test_strange_events_never_end_a_run(events: list[dict[str, Any]]) -> None:
    folded(events)


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        pytest.param(
            [FailedEvent("spark1", "T", "TS-A-B: x"), FailedEvent("spark0", "T", "TS-A-B: x")],
            ["spark0, spark1: TS-A-B: x"],
            id="same-message-once",
        ),
        pytest.param(
            [FailedEvent("spark0", "Run", "rc 3"), FailedEvent("localhost", "T", "TS-A-B: x")],
            ["TS-A-B: x"],
            id="id-wins-and-localhost-is-not-named",
        ),
        pytest.param(
            [FailedEvent("spark0", "Run it", "rc 3")], ["spark0: Run it: rc 3"], id="task-is-named-without-id"
        ),
        pytest.param(
            [FailedEvent("spark2", "Ping", "no route", unreachable=True)],
            ["spark2: unreachable: Ping: no route"],
            id="unreachable",
        ),
        pytest.param(
            [FailedEvent("spark0", "Judge the gates", "canary.text: expected a; observed b", "canary.text")],
            ["spark0: canary.text: expected a; observed b"],
            id="gate",
        ),
        pytest.param(
            [FailedEvent("localhost", "End", "env.effective on rank 2: expected a; observed b")],
            ["env.effective on rank 2: expected a; observed b"],
            id="gate-of-a-rank-in-the-line-of-a-boot",
        ),
        pytest.param(
            [FailedEvent("spark1", "Wait", "boot.ready: the engine of rank 1 ended")],
            ["spark1: boot.ready: the engine of rank 1 ended"],
            id="rank-that-is-not-ready",
        ),
        pytest.param(
            [FailedEvent("spark1", "Read", "config.json: no such file")],
            ["spark1: Read: config.json: no such file"],
            id="a-file-is-no-check",
        ),
        pytest.param([], [], id="none"),
    ],
)
def test_error_lines(failures: list[FailedEvent], expected: list[str]) -> None:
    assert error_lines(failures) == expected


def test_error_lines_are_bounded() -> None:
    lines = error_lines([FailedEvent("spark0", "T", f"TS-A-B: {number}") for number in range(30)])
    assert len(lines) == 9
    assert lines[-1] == "... and 22 more, see the run's events"
