"""Several verbs in one call are what they are alone, one after the other, until one fails."""

import json

import pytest

from trispark_node import PROTOCOL, cli


def call(bench, *steps, **more):
    request = {"protocol": PROTOCOL, "steps": [{"verb": verb, "request": request} for verb, request in steps], **more}
    return cli.answer(bench.node, "steps", json.dumps(request))


def journal(bench):
    return [(entry.verb, entry.phase) for entry in bench.node.journal.read().entries]


def test_each_has_its_own_answer_and_its_own_place_in_the_journal(bench):
    answer, status = call(bench, ("fence", {"epoch": 3}), ("record-head", {}), ("fence", {"epoch": 4}))
    assert (status, answer["changed"]) == (0, True)
    assert [(each["verb"], each.get("epoch")) for each in answer["answers"]] == [
        ("fence", 3),
        ("record-head", None),
        ("fence", 4),
    ]
    assert journal(bench) == [("fence", "intent"), ("fence", "done")] * 2


def test_the_first_that_fails_ends_it_with_its_own_error_and_what_was_done_before(bench):
    answer, status = call(bench, ("fence", {"epoch": 3}), ("fence", {"epoch": 2}), ("fence", {"epoch": 9}))
    alone, _ = cli.answer(bench.node, "fence", json.dumps({"protocol": PROTOCOL, "epoch": 2}))
    assert (status, answer["ok"], answer["error"]) == (1, False, alone["error"])
    assert [each["epoch"] for each in answer["answers"]] == [3]
    assert bench.ask("status")["epoch"] == 3


@pytest.mark.parametrize(
    ("steps", "error_id", "where"),
    [
        ([{"verb": "fence", "request": {"epoch": 3}}, {"verb": "dance"}], "TS-AGENT-VERB", "trispark-node"),
        ([{"verb": "fence", "request": {"epoch": 3}}, {"verb": "steps"}], "TS-AGENT-REQUEST", "request.steps[1]"),
        ([{"verb": "fence", "request": {"epoch": 3}}, "stop"], "TS-AGENT-REQUEST", "request.steps[1]"),
        ([{"verb": "fence", "request": {"epoch": 3}, "when": True}], "TS-AGENT-REQUEST", "request.steps[0]"),
        ([{"verb": "fence", "request": [3]}], "TS-AGENT-REQUEST", "request.steps[0].request"),
        ({"verb": "fence"}, "TS-AGENT-REQUEST", "request.steps"),
    ],
)
def test_what_is_no_list_of_steps_is_refused_before_the_first(bench, steps, error_id, where):
    answer, status = cli.answer(bench.node, "steps", json.dumps({"steps": steps}))
    assert (answer["error"]["id"], answer["error"]["where"], status) == (error_id, where, 2)
    assert journal(bench) == []


def test_a_request_that_its_verb_does_not_understand_is_named_by_its_place(bench):
    answer, status = call(bench, ("fence", {"epoch": 3}), ("fence", {"epoch": 4, "speed": 1}))
    assert (answer["error"]["where"], answer["error"]["observed"], status) == ("request.steps[1]", "speed", 2)
    assert bench.ask("status")["epoch"] == 3


def test_check_mode_and_the_owner_hold_for_each(bench):
    ana = {"token": "0123456789abcdef-1-1", "host": "h", "pid": 1, "user": "ana", "reason": "boot"}
    answer, _ = call(bench, ("fence", {"epoch": 3}), ("fence", {"epoch": 4}), check=True)
    assert (answer["changed"], journal(bench)) == (True, [])
    assert call(bench, ("record-head", {}), ("fence", {"epoch": 3}), owner=ana)[1] == 0
    assert bench.ask("lock-show")["holder"]["user"] == "ana"
    refused, _ = call(bench, ("record-head", {}), ("fence", {"epoch": 4}), owner={**ana, "token": "f" * 16 + "-2-2"})
    assert refused["error"]["id"] == "TS-LOCK-HELD"


def test_a_disk_that_fails_is_told_of_the_step_that_it_failed(bench, monkeypatch):
    def full(*_arguments):
        raise OSError(28, "No space left on device", "/x")

    assert call(bench, ("fence", {"epoch": 3}))[1] == 0
    monkeypatch.setattr("trispark_node.epoch.write", full)
    answer, _ = call(bench, ("record-head", {}), ("fence", {"epoch": 4}))
    assert (answer["error"]["id"], answer["error"]["what"].split()[0]) == ("TS-AGENT-SPACE", "fence")
    assert [each["verb"] for each in answer["answers"]] == ["record-head"]
