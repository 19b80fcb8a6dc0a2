"""A server of another HTTP implementation (aiohttp) on a free port of loopback, which knows what it sent."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from trispark_bench.plan import BenchPlan
from trispark_bench.run import Results, run_plan

PLAN: dict[str, Any] = {
    "protocol": 2,
    "base_url": "http://127.0.0.1:1",
    "model": "m",
    "repetitions": 3,
    "max_tokens": 8,
    "warmup_tokens": 2,
    "concurrency": [1, 2],
    "workloads": {
        "prose": {"prompts": ["a"], "temperature": 0, "top_p": 1},
        "code": {"prompts": ["b", "c"], "temperature": 0, "top_p": 1},
    },
    "deadline_s": 20,
    "seed": 1,
    "thinking": False,
    "reasoning_effort": None,
}
DONE = b"data: [DONE]\n\n"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def event(delta: dict[str, Any], **more: Any) -> bytes:
    return f"data: {json.dumps({'choices': [{'delta': delta}], **more})}\n\n".encode()


def usage(completion: int, prompt: int = 1) -> dict[str, int]:
    return {"completion_tokens": completion, "prompt_tokens": prompt}


def last(completion: int) -> bytes:
    return f"data: {json.dumps({'choices': [], 'usage': usage(completion)})}\n\n".encode()


async def send(request: web.Request, parts: list[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for part in parts:
        await response.write(part)
    return response


async def answer(request: web.Request) -> web.StreamResponse:
    """What was asked for, one token an event, with continuous usage."""
    count = (await request.json())["max_tokens"]
    parts = [event({"content": "x"}, usage=usage(place + 1)) for place in range(count)]
    return await send(request, [*parts, last(count), DONE])


async def server_info(_request: web.Request) -> web.Response:
    return web.json_response({"version": "1", "startup_time": 3.5, "internal_states": [{"n": 1}]})


async def serving(
    handler: Handler,
    use: Callable[[str], Awaitable[Any]],
    *,
    info: Handler = server_info,
    metrics: Handler | None = None,
    tls: ssl.SSLContext | None = None,
) -> Any:
    """Run `use(base_url)` against the server."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    app.router.add_get("/server_info", info)
    if metrics is not None:
        app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    try:
        return await use(f"{'https' if tls else 'http'}://127.0.0.1:{port}")
    finally:
        await runner.cleanup()


def run(
    handler: Handler, *, keep: Results | None = None, raw: Any = None, change: Any = None, **server: Any
) -> Results:
    """A whole run of PLAN with `change`; what is raised passes, `keep` has what came before."""

    async def use(base: str) -> Results:
        plan = BenchPlan.from_json({**PLAN, "base_url": base, **(change or {})})
        results = keep if keep is not None else Results(plan)
        results.plan = plan
        await run_plan(plan, results, raw)
        return results

    result: Results = asyncio.run(serving(handler, use, **server))
    return result


def one(handler: Handler, **change: Any) -> Any:
    """The sample of one request that counts; the warm-up is answered well."""

    async def warmed(request: web.Request) -> web.StreamResponse:
        return await (answer if (await request.json())["max_tokens"] == 2 else handler)(request)

    plan = {"repetitions": 1, "concurrency": [1], "workloads": {"prose": PLAN["workloads"]["prose"]}, **change}
    results = run(warmed, change=plan)
    assert len(results.requests) == 1
    return results.requests[0]
