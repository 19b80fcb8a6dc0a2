"""A task with steps: which calls it makes, and its result as if it were one verb's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trispark.agent_call import result_of
from trispark.agent_deadline import deadline_s
from trispark.agent_steps import in_steps
from trispark_node import cli
from trispark_node.layout import Layout
from trispark_node.node import Node


def step(verb: str, request: Any = None, *, requests: Any = None, when: bool = True) -> dict[str, Any]:
    return {"verb": verb, "request": request or {}, "requests": requests, "when": when}


class Agent:
    """A node's own agent, called as a task calls it."""

    def __init__(self, base: Path) -> None:
        self.node = Node(Layout(base / "state"))
        self.asked: list[list[tuple[str, Any]]] = []

    def __call__(self, verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append([(each["verb"], each["request"]) for each in request["steps"]])
        answer, code = cli.answer(self.node, verb, json.dumps(request))
        return result_of(verb, "agent", code, json.dumps(answer), "")


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


def test_the_last_ones_answer_is_the_tasks_and_those_before_it_are_there_by_verb(agent: Agent) -> None:
    result = in_steps(agent, [step("fence", {"epoch": 2}), step("version")])
    assert (result["changed"], result["answer"]["verb"], result["answer"]["ok"]) == (True, "version", True)
    assert (result["answers"]["fence"]["epoch"], result["answers"]["fence"]["ok"]) == (2, True)
    assert result["diff"] == {"before": "epoch 0\n", "after": "epoch 2\n"}


def test_several_requests_are_steps_of_their_own_and_one_that_is_not_wanted_is_none(agent: Agent) -> None:
    result = in_steps(
        agent,
        [
            step("fence", requests=[{"epoch": 1}, {"epoch": 2}]),
            step("fence", requests=[]),
            step("stop", when=False),
            step("record-head"),
        ],
    )
    assert agent.asked == [[("fence", {"epoch": 1}), ("fence", {"epoch": 2}), ("record-head", {})]]
    assert result["answers"]["fence"]["epoch"] == 2
    assert result["diff"] == {"before": "epoch 0\nepoch 1\n", "after": "epoch 1\nepoch 2\n"}


@pytest.mark.parametrize("named", [[], [step("stop", when=False)], [step("fence", requests=[])]])
def test_nothing_is_called_for_no_step(agent: Agent, named: list[dict[str, Any]]) -> None:
    result = in_steps(agent, named)
    assert (result["skipped"], result["changed"], result["answers"], agent.asked) == (True, False, {}, [])


def test_the_failure_is_the_steps_own_and_says_what_was_done_before_it(agent: Agent) -> None:
    result = in_steps(agent, [step("fence", {"epoch": 2}), step("fence", {"epoch": 1}), step("version")])
    assert (result["failed"], result["check_id"], result["answer"]["ok"]) == (True, "TS-AGENT-EPOCH", False)
    assert list(result["answers"]) == ["fence"]
    assert result["changed"], "a step before it did"


def test_a_first_step_that_fails_has_changed_nothing(agent: Agent) -> None:
    in_steps(agent, [step("fence", {"epoch": 2})])
    result = in_steps(agent, [step("fence", {"epoch": 1}), step("fence", {"epoch": 3})])
    assert (result["failed"], result["changed"], result["answers"]) == (True, False, {})


def test_a_node_without_an_answer_has_none(agent: Agent) -> None:
    result = in_steps(lambda _verb, _request: {"failed": True, "changed": False, "msg": "x"}, [step("version")])
    assert (result["failed"], result["answers"], "answer" in result) == (True, {}, False)


def test_a_call_may_take_as_long_as_its_steps_together() -> None:
    asked = [{"verb": "stop", "request": {"deadline_s": 20}}, {"verb": "fence", "request": {}}]
    own = deadline_s("steps", {"steps": []})
    assert deadline_s("steps", {"steps": asked}) == own + deadline_s("stop", {"deadline_s": 20}) + deadline_s(
        "fence", {}
    )
