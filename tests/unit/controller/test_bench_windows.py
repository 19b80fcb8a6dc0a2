"""A window counts when the server's counters saw our requests, all of them and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from trispark.bench_windows import WindowCheck, check_windows, windows_problem
from trispark.errors import TrisparkError


def row(tag: str = "c2", index: int = 0, **change: Any) -> dict[str, Any]:
    plain = {"tag": tag, "index": index, "completion_tokens": 31, "ttft_s": 0.1, "total_s": 1.1, "error": None}
    return {**plain, **change}


def output() -> dict[str, Any]:
    """Two requests of 31 tokens each; 30 after the first come in 10 steps, the last of which accepts 2 too many."""
    before = {"generation_tokens": 1000, "finished_requests": 50, "verify_steps": 400, "avg_spec_accept_length": 2.5}
    after = {"generation_tokens": 1062, "finished_requests": 52, "verify_steps": 420}
    after["avg_spec_accept_length"] = (400 * 2.5 + 64) / 420
    window = {
        "tag": "c2",
        "width": 2,
        "wall_s": 1.1,
        "identity": [{"startup_time": 3.5, "version": "1"}, {"startup_time": 3.5, "version": "1"}],
        "metrics": [None, None],
    }
    return {
        "requests": [row(), row(index=1)],
        "waves": [],
        "windows": [window],
        "server_info": [{"tag": "c2", "before": before, "after": after}],
    }


def check(change: Callable[[dict[str, Any]], object] = lambda found: None, **given: Any) -> WindowCheck:
    found = copy.deepcopy(output())
    change(found)
    return check_windows(found, **given)[0]


def test_what_the_counters_say() -> None:
    found = check()
    assert found.problem is None
    assert (found.tokens, found.requests, found.verify_calls, found.probes) == (62, 2, 20, 0)
    assert found.tokens_per_step == pytest.approx(60 / 20)
    assert found.truncated_tokens == 4
    assert found.step_s == pytest.approx(2.0 / 20)
    assert found.not_checked == ()


def test_metrics_take_precedence_over_the_internal_state() -> None:
    metrics = [
        {"generation_tokens": 10.0, "finished_requests": 1.0},
        {"generation_tokens": 72.0, "finished_requests": 3.0},
    ]
    found = check(lambda out: out["windows"][0].update(metrics=metrics))
    assert (found.tokens, found.requests, found.problem) == (62, 2, None)


def test_truncation_by_the_requests_own_details() -> None:
    """Ten steps each, 23 right drafts: 33 tokens were accepted for 30."""
    found = check(lambda out: [each.update(verify_steps=10, correct_drafts=23) for each in out["requests"]])
    assert found.truncated_tokens == 2 * 33 - 60


def side(which: str, **change: Any) -> Callable[[dict[str, Any]], object]:
    return lambda out: out["server_info"][0][which].update(change)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (side("after", finished_requests=53), "the server counted 3 requests, ours were 2: foreign traffic"),
        (side("after", generation_tokens=1063), "the server counted 63 tokens, ours were 62: foreign traffic"),
        (side("after", generation_tokens=1061), "the server counted 61 tokens, ours were 62"),
        (side("after", generation_tokens=10), "generation_tokens fell by 990: it was restarted"),
        (side("after", verify_steps=0), "verify_steps fell by 400: it was restarted"),
        (side("before", running=1), "1 requests of others ran or waited before the window"),
        (side("after", running=1, queued=2), "3 requests of others ran or waited after the window"),
        (
            lambda out: out["windows"][0]["identity"][1].update(startup_time=9.0),
            "another engine answered: its startup_time was 3.5, then 9.0",
        ),
        (lambda out: out["windows"][0]["identity"][1].pop("version"), "its version was 1, then None"),
    ],
)
def test_a_window_with_others_or_of_another_engine_does_not_count(
    change: Callable[[dict[str, Any]], object], problem: str
) -> None:
    found = check(change)
    assert problem in (found.problem or "")
    assert (found.tokens_per_step, found.step_s, found.truncated_tokens) == (None, None, None)
    assert windows_problem([found]) == f"c2: {found.problem}"


def test_an_engine_that_was_replaced_between_windows_is_found() -> None:
    found = copy.deepcopy(output())
    second = copy.deepcopy(found["windows"][0])
    second["tag"], second["identity"] = "c1-prose", [{"startup_time": 4.5, "version": "1"}] * 2
    found["windows"].append(second)
    found["requests"] += [row("c1-prose"), row("c1-prose", 1)]
    checks = check_windows(found)
    assert checks[0].problem is None
    assert "its startup_time was 3.5, then 4.5" in (checks[1].problem or "")


@pytest.mark.parametrize(
    ("extra", "interval", "probes", "foreign"),
    [(1, 30.0, 1, False), (2, 30.0, 0, True), (2, 1.0, 2, False), (1, None, 0, True)],
)
def test_health_checks_of_our_own_are_counted_not_foreign(
    extra: int, interval: float | None, probes: int, foreign: bool
) -> None:
    """A request of one token each, no more than the interval allows in 1.1 s."""
    change = side("after", finished_requests=52 + extra, generation_tokens=1062 + extra)
    found = check(change, probe_interval_s=interval)
    assert (found.probes, found.problem is not None) == (probes, foreign)


def test_a_probe_is_one_token_not_many() -> None:
    found = check(side("after", finished_requests=53, generation_tokens=1070), probe_interval_s=30.0)
    assert found.problem is not None


def test_what_the_server_does_not_tell_is_not_checked_and_said() -> None:
    found = check(lambda out: out.update(server_info=[]))
    assert found.problem is None
    assert found.not_checked == ("generation_tokens", "finished_requests", "verify_steps")
    nobody = check(lambda out: out["windows"][0].update(identity=[{}, {}]))
    assert nobody.not_checked == ("identity",)
    same = {"version": "1", "random_seed": 0}
    any_process = check(lambda out: out["windows"][0].update(identity=[same, same]))
    assert (any_process.problem, any_process.not_checked) == (None, ("identity",)), "another process says the same"


def test_a_failed_request_leaves_no_figures_and_no_blame() -> None:
    """The server may have counted tokens that nobody told us of."""
    found = check(lambda out: out["requests"][0].update(error="HTTP 500", completion_tokens=None))
    assert (found.problem, found.step_s, found.tokens_per_step) == (None, None, None)


def test_the_long_prompt_of_a_mixed_cell_is_ours() -> None:
    def change(out: dict[str, Any]) -> None:
        out["requests"].append(row("c2-prefill", completion_tokens=3))
        out["server_info"][0]["after"].update(finished_requests=53, generation_tokens=1065)

    assert check(change).problem is None


@pytest.mark.parametrize(
    "broken",
    [
        {"windows": [{"tag": "c2"}]},
        {"windows": ["c2"]},
        {"server_info": [{}]},
        {"requests": [{"tag": "c2"}]},
    ],
)
def test_what_is_no_output_is_named(broken: dict[str, Any]) -> None:
    with pytest.raises(TrisparkError) as caught:
        check_windows({**output(), **broken})
    assert caught.value.id == "TS-BENCH-SHAPE"
