"""The load client against a real HTTP server that knows what it sent."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from aiohttp import web
from bench_server import DONE, PLAN, answer, event, last, one, run, send, usage

from trispark_bench.counters import parse_metrics
from trispark_bench.plan import BenchPlan, PlanError
from trispark_bench.rawfile import RawFile
from trispark_bench.run import Aborted, Results
from trispark_bench.wire import Silence


def sending(*parts: bytes):
    async def handler(request: web.Request) -> web.StreamResponse:
        return await send(request, list(parts))

    return handler


def test_tokens_come_from_usage_not_from_events() -> None:
    sample = one(sending(event({"content": "three tokens"}), event({"content": " and five"}), last(8), DONE))
    assert (sample.completion_tokens, sample.prompt_tokens, sample.events, sample.error) == (8, 1, 2, None)
    assert 0 < sample.ttft_s <= sample.total_s
    assert (sample.tokens, sample.first_tokens) == (None, None), "usage at the end says nothing about the events before"


def test_continuous_usage_tells_the_tokens_of_each_event() -> None:
    sample = one(
        sending(
            event({"role": "assistant", "content": ""}),
            event({"reasoning_content": "so"}, usage=usage(2)),
            event({"content": "a"}, usage=usage(5)),
            event({"tool_calls": [{"index": 0}]}, usage=usage(8)),
            last(8),
            DONE,
        )
    )
    assert (sample.kinds, sample.tokens) == ("-rct--", (0, 2, 5, 8, 8, 8))
    assert (sample.first_tokens, sample.reasoning_chars, sample.content_chars) == (2, 2, 1)
    assert sample.ttft_s == sample.at_ns[1] / 1e9
    assert sample.total_s == sample.at_ns[3] / 1e9
    assert len(sample.sizes) == 6


def test_the_last_token_counts_when_it_came_without_text() -> None:
    """Half a character is held back by the server; the tokens are there all the same."""
    sample = one(
        sending(event({"content": "a"}, usage=usage(1)), event({"content": ""}, usage=usage(8)), last(8), DONE)
    )
    assert sample.total_s == sample.at_ns[1] / 1e9


def test_details_of_usage_and_speculation_are_kept() -> None:
    spec = {"spec_verify_ct": 3, "spec_num_correct_drafts": 4}
    full = {**usage(8), "prompt_tokens_details": {"cached_tokens": 5}, "completion_tokens_details": None}
    sample = one(
        sending(
            event({"content": "a"}),
            f"data: {json.dumps({'choices': [], 'sglext': {'spec_tokens_details': spec}})}\n\n".encode(),
            f"data: {json.dumps({'choices': [], 'usage': full})}\n\n".encode(),
            DONE,
        )
    )
    assert (sample.verify_steps, sample.correct_drafts, sample.cached_tokens, sample.reasoning_tokens) == (
        3,
        4,
        5,
        None,
    )


TEXT = event({"content": "a"}, usage=usage(8))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([event({"content": "a"}), DONE], "without usage"),
        ([last(1), DONE], "no text"),
        ([TEXT, last(8)], r"without \[DONE\]"),
        ([], r"without \[DONE\] after 0 events"),
        ([DONE], "without usage"),
        ([b'data: {"error": {"message": "gone"}}\n\n'], "gone"),
        ([b"data: {broken\n\n"], "not JSON"),
        ([b"data: [1]\n\n"], "no object"),
        ([b'data: {"choices": 5}\n\n'], "another shape"),
        ([b'data: {"choices": [{"delta": {"content": 5}}]}\n\n'], "another shape"),
        ([b"data: \xff\xfe\n\n"], "not UTF-8"),
        ([TEXT, b"data: {"], "within an event"),
        ([event({"content": "a"}, logprobs=[float("nan")])], "holds NaN"),
        ([event({"content": "a"}, logprobs=[float("-inf")])], "holds -Infinity"),
        ([b'data: {"choices": [], "logprob": 1e999}\n\n'], "holds 1e999"),
        ([event({"content": "a"}, model="other")], "'other' answered, asked for was 'm'"),
        ([event({"content": "a"}, model="\ud800")], "answered"),
        ([event({"content": "a"}, usage=usage(3)), last(2)], "fell from 3 to 2"),
        ([event({"content": "a"}, usage={"completion_tokens": 2.5, "prompt_tokens": 1})], "usage is"),
        ([event({"content": "a"}, usage="8")], "usage is"),
        ([event({"content": "a"}), last(0), DONE], "counts 0 tokens"),
        ([b'data: {"a": ' + b"[" * 100000 + b"\n\n"], "not JSON"),
    ],
)
def test_a_bad_stream_is_an_error_with_a_reason(parts: list[bytes], message: str) -> None:
    sample = one(sending(*parts))
    assert sample.completion_tokens is None
    assert sample.ttft_s is None
    assert sample.tokens is None
    assert re.search(message, sample.error)
    json.dumps(sample.as_json(), allow_nan=False).encode()


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_an_http_error_is_kept_with_its_status_and_not_tried_again(status: int) -> None:
    asked = []

    async def handler(request: web.Request) -> web.StreamResponse:
        asked.append(1)
        return web.Response(status=status, text="busy\nnow", headers={"Retry-After": "0"})

    sample = one(handler)
    assert (sample.status, sample.error) == (status, f"HTTP {status}: busy now")
    assert len(asked) == 2, "the round that does not count and the one that does"


def test_a_plan_gives_each_repetition_each_wave_and_counters() -> None:
    seen: list[dict[str, Any]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(await request.json())
        return await answer(request)

    results = run(handler)
    result = results.as_json()
    tags = [request["tag"] for request in result["requests"]]
    assert {tag: tags.count(tag) for tag in tags} == {"c1-prose": 3, "c1-code": 3, "c2": 6}
    assert [wave["tokens"] for wave in result["waves"]] == [16, 16, 16]
    assert sorted(phase["tag"] for phase in result["server_info"]) == ["c1-code", "c1-prose", "c2"]
    assert [window["tag"] for window in result["windows"]] == result["order"]
    assert all(window["identity"][0]["startup_time"] == 3.5 for window in result["windows"])
    assert all(body["ignore_eos"] and body["temperature"] == 0 for body in seen)
    assert all(body["chat_template_kwargs"] == {"thinking": False} for body in seen)
    warm = [body for body in seen if body["max_tokens"] == 2]
    assert len(warm) == 2, "each workload is warmed up"
    assert len(seen) == 2 + 3 * 2 + 3 * 2 + 4, "and the first round of each cell is thrown away"


def test_the_requests_of_a_wave_are_all_on_their_way_before_the_first_answer() -> None:
    waiting: list[asyncio.Event] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        """Answers nobody of a wave before all of it is there."""
        body = await request.json()
        if body["max_tokens"] == 8 or len(body["messages"][0]["content"]) > 1:
            mine = asyncio.Event()
            waiting.append(mine)
            if len(waiting) == 5:
                for other in waiting:
                    other.set()
                waiting.clear()
            await mine.wait()
        return await answer(request)

    results = run(handler, change={"concurrency": [5], "repetitions": 2})
    assert [wave["errors"] for wave in results.waves] == [0, 0]
    assert all(0 <= wave["start_spread_s"] < wave["wall_s"] for wave in results.waves)


def test_cells_are_drawn_by_the_seed_and_the_order_is_recorded() -> None:
    orders = {tuple(run(answer, change={"seed": seed, "repetitions": 1}).order) for seed in range(8)}
    assert len(orders) > 1
    assert {tuple(sorted(order)) for order in orders} == {("c1-code", "c1-prose", "c2")}
    again = [run(answer, change={"seed": 5, "repetitions": 1}).order for _ in range(2)]
    assert again[0] == again[1]


def test_the_plan_fixes_how_answers_are_drawn() -> None:
    seen: list[dict[str, Any]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(await request.json())
        return await answer(request)

    chat = {"chat": {"prompts": ["q"], "temperature": 0.7, "top_p": 0.95}}
    change = {"workloads": chat, "concurrency": [1], "thinking": True, "reasoning_effort": "high", "seed": 40}
    run(handler, change=change)
    counted = [body for body in seen if body["max_tokens"] == 8][1:]
    assert {(body["temperature"], body["top_p"]) for body in counted} == {(0.7, 0.95)}
    assert [body["seed"] for body in counted] == [40, 41, 42], "repetitions draw anew, boots draw the same"
    assert counted[0]["chat_template_kwargs"] == {"thinking": True, "reasoning_effort": "high"}


def test_a_context_stands_before_each_prompt_of_its_own_cells() -> None:
    seen: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append((await request.json())["messages"][0]["content"])
        return await answer(request)

    results = run(handler, change={"contexts": {"short": "", "long": "L" * 50}, "repetitions": 1})
    assert sorted(results.order) == ["c1-code", "c1-code-long", "c1-prose", "c1-prose-long", "c2", "c2-long"]
    assert "L" * 50 + "a" in seen
    assert {window["tag"]: window["context"] for window in results.windows}["c2-long"] == "long"


def test_a_long_prompt_comes_when_the_others_decode() -> None:
    order: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt, count = body["messages"][0]["content"], body["max_tokens"]
        order.append(f"asked {prompt}")
        response = await send(request, [event({"content": "x"}, usage=usage(1))])
        for place in range(1, count):
            await asyncio.sleep(0.02)
            await response.write(event({"content": "x"}, usage=usage(place + 1)))
        await response.write(last(count) + DONE)
        order.append(f"answered {prompt}")
        return response

    mixed = [{"width": 2, "prompt": "long", "max_tokens": 3}]
    results = run(handler, change={"concurrency": [1], "mixed": mixed, "repetitions": 1})
    tags = [sample.tag for sample in results.requests if sample.tag.startswith("mixed")]
    assert tags == ["mixed-c2", "mixed-c2", "mixed-c2-prefill"]
    place = order.index("asked long")
    assert order[place - 2 : place] in (["asked a", "asked b"], ["asked b", "asked a"])


def test_a_wave_counts_its_errors() -> None:
    calls = {"n": 0}

    async def handler(request: web.Request) -> web.StreamResponse:
        calls["n"] += 1
        if (await request.json())["max_tokens"] == 8 and calls["n"] % 5 == 0:
            return web.Response(status=500, text="broken")
        return await answer(request)

    results = run(handler, change={"repetitions": 5})
    failed = [sample.index // 2 for sample in results.requests if sample.tag == "c2" and sample.error]
    assert failed
    assert [wave["errors"] for wave in results.waves] == [failed.count(wave) for wave in range(5)]


@pytest.mark.parametrize("after", [0, 3], ids=["before the first event", "in the middle of a stream"])
def test_a_server_that_falls_silent_ends_the_measurement(after: int) -> None:
    """It is not waited for once more by every request that is left."""
    asked = []

    async def handler(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body["max_tokens"] == 2:
            return await answer(request)
        asked.append(body)
        if after:
            await send(request, [event({"content": "x"})] * after)
        await asyncio.Event().wait()
        return web.Response()

    with pytest.raises(Silence):
        run(handler, change={"silence_s": 0.3, "concurrency": [1]})
    assert len(asked) == 1


def test_a_server_that_sends_slowly_is_waited_for() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await send(request, [])
        for place in range(8):
            await asyncio.sleep(0.1)
            await response.write(event({"content": "x"}, usage=usage(place + 1)))
        await response.write(last(8) + DONE)
        return response

    sample = one(handler, silence_s=0.5)
    assert sample.error is None
    assert sample.total_s > 0.7


def test_rows_are_written_as_they_come(tmp_path) -> None:
    raw = RawFile(tmp_path / "raw.jsonl")
    results = run(answer, raw=raw, change={"repetitions": 2})
    raw.close()
    rows = [json.loads(line) for line in (tmp_path / "raw.jsonl").read_text().splitlines()]
    assert rows == json.loads(json.dumps([sample.as_json() for sample in results.requests]))
    assert all(len(row["at_ns"]) == len(row["sizes"]) == len(row["kinds"]) for row in rows)


def test_metrics_are_read_where_they_are_served() -> None:
    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(text='sglang:generation_tokens_total{a="b"} 5.0\nsglang:num_requests_total{a="b"} 2\n')

    results = run(answer, metrics=metrics)
    assert results.windows[0]["metrics"][0] == {"generation_tokens": 5.0, "finished_requests": 2.0}
    assert run(answer).windows[0]["metrics"] == [None, None]


def test_metrics_are_summed_over_labels_and_other_lines_are_skipped() -> None:
    text = "\n".join(
        [
            "# HELP sglang:generation_tokens_total x",
            'sglang:generation_tokens_total{dp="0"} 5',
            'sglang:generation_tokens_total{dp="1"} 7 1700000000000',
            'sglang:time_to_first_token_seconds_bucket{le="+Inf"} 3',
            "sglang:num_running_reqs NaNny",
            "garbage",
        ]
    )
    assert parse_metrics(text) == {"generation_tokens": 12.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"repetitions": 0}, "repetitions"),
        ({"max_tokens": 1}, "max_tokens"),
        ({"concurrency": []}, "concurrency"),
        ({"workloads": {}}, "workload"),
        ({"workloads": {"prose": {"prompts": [], "temperature": 0, "top_p": 1}}}, "prompt"),
        ({"workloads": {"prose": ["a"]}}, "prompts"),
        ({"workloads": {"prose": {"prompts": ["a"], "temperature": 3, "top_p": 1}}}, "temperature"),
        ({"base_url": "ftp://x"}, "http"),
        ({"base_url": "http://"}, "http"),
        ({"ca_file": "/no/such/file", "base_url": "https://x"}, "No such file"),
        ({"surplus": 1}, "surplus"),
        ({"deadline_s": "soon"}, "wrong type"),
        ({"deadline_s": float("nan")}, "deadline_s"),
        ({"protocol": 1}, "protocol"),
        ({"mixed": [{"width": 0, "prompt": "x", "max_tokens": 2}]}, "width"),
        ({"mixed": [{}]}, "mixed"),
    ],
)
def test_a_senseless_plan_is_refused(change, message) -> None:
    with pytest.raises(PlanError, match=message):
        BenchPlan.from_json({**PLAN, **change})


def test_a_missing_field_is_named() -> None:
    with pytest.raises(PlanError, match="model"):
        BenchPlan.from_json({key: value for key, value in PLAN.items() if key != "model"})


def test_a_warm_up_that_fails_ends_the_run() -> None:
    async def handler(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=401, text="send the API key")

    with pytest.raises(Aborted, match="warm-up, prose: HTTP 401"):
        run(handler)


def test_what_was_measured_before_the_end_is_there() -> None:
    calls = {"n": 0}

    async def info(_request: web.Request) -> web.Response:
        calls["n"] += 1
        return web.Response(status=500) if calls["n"] == 4 else web.json_response({"internal_states": [{}]})

    keep = Results(BenchPlan.from_json(PLAN))
    with pytest.raises(RuntimeError, match="/server_info: HTTP 500"):
        run(answer, keep=keep, info=info)
    assert len(keep.windows) == 1
    assert len(keep.requests) >= 6


def test_a_gauge_that_is_no_number_is_left_out() -> None:
    """Our own output is JSON, which has no NaN."""
    assert parse_metrics('sglang:generation_tokens_total{a="1"} 1e308\n' * 2) == {}
    text = (
        "sglang:generation_tokens_total 12\nsglang:generation_tokens_total NaN\nsglang:generation_tokens_total +Inf\n"
    )
    assert parse_metrics(text) == {"generation_tokens": 12.0}
