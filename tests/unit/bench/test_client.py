"""The load client against a real HTTP server that knows what it sent."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from trispark_bench.plan import BenchPlan, PlanError
from trispark_bench.request import chat_body, measure
from trispark_bench.run import run_plan

PLAN: dict[str, Any] = {
    "base_url": "http://127.0.0.1:1",
    "model": "m",
    "repetitions": 3,
    "max_tokens": 8,
    "warmup_tokens": 2,
    "concurrency": [1, 2],
    "workloads": {"prose": ["a"], "code": ["b", "c"]},
    "deadline_s": 20,
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


DONE = b"data: [DONE]\n\n"


async def stream(request: web.Request, blocks: list[str], usage: dict[str, int] | None, tail: bytes = DONE):
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for block in blocks:
        event = {"choices": [{"delta": {"content": block}}]}
        await response.write(f"data: {json.dumps(event)}\n\n".encode())
    if usage is not None:
        await response.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode())
    await response.write(tail)
    return response


async def server_info(_request: web.Request) -> web.Response:
    return web.json_response({"internal_states": [{"n": 1}]})


async def serving(handler: Handler, use: Callable[[str], Awaitable[Any]]) -> Any:
    """Run `use(base_url)` against a server on a free port of loopback."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    app.router.add_get("/server_info", server_info)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        return await use(f"http://127.0.0.1:{port}")
    finally:
        await runner.cleanup()


def one(handler: Handler):
    async def use(base: str):
        async with aiohttp.ClientSession() as session:
            return await measure(
                session, f"{base}/v1/chat/completions", chat_body("m", "x", 8), tag="t", workload="w", index=0
            )

    return asyncio.run(serving(handler, use))


def test_tokens_come_from_usage_not_from_events() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await stream(request, ["three tokens", " and five"], {"completion_tokens": 8, "prompt_tokens": 4})

    sample = one(handler)
    assert (sample.completion_tokens, sample.prompt_tokens, sample.events, sample.error) == (8, 4, 2, None)
    assert 0 < sample.ttft_s <= sample.total_s


@pytest.mark.parametrize(
    ("blocks", "usage", "tail", "message"),
    [
        (["a"], None, b"data: [DONE]\n\n", "without usage"),
        ([], {"completion_tokens": 1, "prompt_tokens": 1}, b"data: [DONE]\n\n", "no text"),
        (["a"], None, b'data: {"error": {"message": "gone"}}\n\n', "gone"),
        (["a"], None, b"data: {broken\n\n", "JSONDecodeError"),
    ],
    ids=["no-usage", "no-text", "error-event", "not-json"],
)
def test_a_bad_stream_is_an_error_with_a_reason(blocks, usage, tail, message) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await stream(request, blocks, usage, tail)

    sample = one(handler)
    assert sample.completion_tokens is None
    assert message in sample.error


def test_an_http_error_is_kept_with_its_status() -> None:
    async def handler(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=503, text="busy\nnow")

    assert one(handler).error == "HTTP 503: busy now"


def test_a_plan_gives_each_repetition_each_wave_and_counters() -> None:
    seen: list[dict[str, Any]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        seen.append(body)
        return await stream(request, ["x", "y"], {"completion_tokens": body["max_tokens"], "prompt_tokens": 1})

    async def use(base: str):
        return await run_plan(BenchPlan.from_json({**PLAN, "base_url": base}))

    result = asyncio.run(serving(handler, use))
    tags = [request["tag"] for request in result["requests"]]
    assert {tag: tags.count(tag) for tag in tags} == {"c1-prose": 3, "c1-code": 3, "c2": 6}
    assert [wave["tokens"] for wave in result["waves"]] == [16, 16, 16]
    assert [phase["tag"] for phase in result["server_info"]] == ["c1-prose", "c1-code", "c2"]
    assert all(body["ignore_eos"] and body["temperature"] == 0 for body in seen)
    warm = [body for body in seen if body["max_tokens"] == 2]
    assert len(warm) == 4, "two workloads and one wave of two are warmed up and thrown away"


def test_a_wave_counts_its_errors() -> None:
    calls = {"n": 0}

    async def handler(request: web.Request) -> web.StreamResponse:
        calls["n"] += 1
        body = await request.json()
        if body["max_tokens"] == 8 and calls["n"] % 5 == 0:
            return web.Response(status=500, text="broken")
        return await stream(request, ["x", "y"], {"completion_tokens": body["max_tokens"], "prompt_tokens": 1})

    async def use(base: str):
        return await run_plan(BenchPlan.from_json({**PLAN, "base_url": base, "repetitions": 5}))

    result = asyncio.run(serving(handler, use))
    failed = [request["index"] // 2 for request in result["requests"] if request["tag"] == "c2" and request["error"]]
    assert failed
    assert [wave["errors"] for wave in result["waves"]] == [failed.count(wave) for wave in range(5)]


@pytest.mark.parametrize("after", [0, 3], ids=["before the first event", "in the middle of a stream"])
def test_a_server_that_falls_silent_ends_the_measurement(after: int) -> None:
    """It is not waited for once more by every request that is left."""
    asked = []

    async def handler(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        asked.append(body)
        if body["max_tokens"] == 2:
            return await stream(request, ["x", "y"], {"completion_tokens": 2, "prompt_tokens": 1})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if after:
            await response.prepare(request)
        for _ in range(after):
            await response.write(b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n')
        await asyncio.sleep(3)
        return response

    async def use(base: str):
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await run_plan(BenchPlan.from_json({**PLAN, "base_url": base}), silence_s=0.3)
        return time.monotonic() - began

    assert asyncio.run(serving(handler, use)) < 3
    assert sum(body["max_tokens"] == 8 for body in asked) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"repetitions": 0}, "repetitions"),
        ({"max_tokens": 1}, "max_tokens"),
        ({"concurrency": []}, "concurrency"),
        ({"workloads": {"prose": []}}, "prompt"),
        ({"base_url": "ftp://x"}, "http"),
        ({"surplus": 1}, "surplus"),
        ({"deadline_s": "soon"}, "wrong type"),
    ],
)
def test_a_senseless_plan_is_refused(change, message) -> None:
    with pytest.raises(PlanError, match=message):
        BenchPlan.from_json({**PLAN, **change})


def test_a_missing_field_is_named() -> None:
    with pytest.raises(PlanError, match="model"):
        BenchPlan.from_json({key: value for key, value in PLAN.items() if key != "model"})
