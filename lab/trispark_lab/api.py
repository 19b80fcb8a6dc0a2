"""HTTP API of the head."""

import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from .api_answers import Answer, Chat, Completion, Document, Generate, Style
from .api_fields import BadRequest
from .api_generation import Engine, Generation
from .api_key import OPEN_PATHS, authorised
from .api_schema import GenerationRequest, parse_chat, parse_completion, parse_generate
from .api_switches import Administration, answer_state, answer_turn, require_administrator
from .metrics import CONTENT_TYPE, Metric, exposition
from .tokenizer import Tokenizer

MAX_BODY_BYTES = 16 << 20
RETRY_AFTER_S = "1"


def _no_metrics() -> list[Metric]:
    return []


@dataclass
class ApiState:
    """Filled by the server: `engine` is None until warmed, `metrics` where they are not served. `load`: requests and
    tokens at this moment; `capped`: whether the verify cap is armed; `administration`: of a ready engine."""

    model: str
    context_length: int
    max_total_tokens: int
    server_info: Callable[[], dict[str, object]]
    started: int
    tokenizer: Tokenizer | None = None
    engine: Engine | None = None
    metrics: Callable[[], list[Metric]] | None = _no_metrics
    load: Callable[[], dict[str, float]] = dict
    api_key: str | None = None
    capped: bool = False
    administration: Administration | None = None


STATE = web.AppKey("state", ApiState)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except BadRequest as error:
        headers = {"Retry-After": RETRY_AFTER_S} if error.status == 429 else None
        return web.json_response(error.body(), status=error.status, headers=headers)
    except web.HTTPException as error:
        body = BadRequest(f"{request.method} {request.path}: {error.reason}", code="http_error", status=error.status)
        return web.json_response(body.body(), status=error.status, headers=_allow(error))


@web.middleware
async def _key(request: web.Request, handler: Handler) -> web.StreamResponse:
    key = request.app[STATE].api_key
    if key is None or request.path in OPEN_PATHS or authorised(request.headers.get("Authorization"), key):
        return await handler(request)
    raise BadRequest("send the API key as a bearer token", code="invalid_api_key", status=401)


def _allow(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}


def make_app(state: ApiState) -> web.Application:
    """The application; `state` may change while it runs."""
    app = web.Application(middlewares=[_errors, _key], client_max_size=MAX_BODY_BYTES)
    app[STATE] = state
    app.add_routes(
        [
            web.get("/health", _health),
            web.get("/v1/models", _models),
            web.get("/server_info", _server_info),
            web.get("/get_server_info", _server_info),
            web.get("/metrics", _metrics),
            web.get("/v1/loads", _loads),
            web.get("/flush_cache", _flush_cache),
            web.post("/flush_cache", _flush_cache),
            web.get("/start_profile", _profile),
            web.post("/start_profile", _profile),
            web.get("/stop_profile", _profile),
            web.post("/stop_profile", _profile),
            web.get("/lab/switches", _switches),
            web.post("/lab/switch", _switch),
            web.post("/v1/chat/completions", _chat),
            web.post("/v1/completions", _completion),
            web.post("/generate", _generate),
        ]
    )
    return app


async def _health(request: web.Request) -> web.Response:
    return web.Response(status=200 if request.app[STATE].engine is not None else 503)


async def _models(request: web.Request) -> web.Response:
    state = request.app[STATE]
    card = {
        "id": state.model,
        "object": "model",
        "created": state.started,
        "owned_by": "trispark-lab",
        "root": state.model,
        "max_model_len": state.context_length,
    }
    return web.json_response({"object": "list", "data": [card]})


async def _server_info(request: web.Request) -> web.Response:
    return web.json_response(request.app[STATE].server_info())


async def _metrics(request: web.Request) -> web.Response:
    state = request.app[STATE]
    if state.metrics is None:
        raise BadRequest("metrics are served with --enable-metrics", code="no_metrics", status=404)
    text = exposition(state.metrics(), {"model_name": state.model, "engine_type": "unified", "tp_rank": "0"})
    return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})


async def _loads(request: web.Request) -> web.Response:
    return web.json_response({"dp_rank_count": 1, "loads": [{"dp_rank": 0, **request.app[STATE].load()}]})


async def _flush_cache(request: web.Request) -> web.Response:
    load = request.app[STATE].load()
    busy = load.get("num_running_reqs", 0) + load.get("num_waiting_reqs", 0)
    if busy:
        raise BadRequest(f"{busy} requests run or wait; flush when the engine is idle", code="engine_busy")
    return web.Response(text="Cache flushed. This engine keeps no prefix cache between requests.\n")


async def _profile(request: web.Request) -> web.Response:
    raise BadRequest(
        f"TS-ENGINE-PROFILE: {request.path} is not in this version of the engine", code="TS-ENGINE-PROFILE", status=501
    )


async def _switches(request: web.Request) -> web.Response:
    state = request.app[STATE]
    require_administrator(request, state.api_key)
    return await answer_state(state.administration)


async def _switch(request: web.Request) -> web.Response:
    state = request.app[STATE]
    require_administrator(request, state.api_key)
    return await answer_turn(request, state.administration)


async def _chat(request: web.Request) -> web.StreamResponse:
    model = request.app[STATE].model
    return await _serve(request, Chat(), lambda body: parse_chat(body, model))


async def _completion(request: web.Request) -> web.StreamResponse:
    model = request.app[STATE].model
    return await _serve(request, Completion(), lambda body: parse_completion(body, model))


async def _generate(request: web.Request) -> web.StreamResponse:
    return await _serve(request, Generate(), parse_generate)


async def _serve(
    request: web.Request, style: Style, parse: Callable[[object], GenerationRequest]
) -> web.StreamResponse:
    state = request.app[STATE]
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        raise BadRequest("the body is not JSON") from error
    asked = parse(body)
    if state.engine is None or state.tokenizer is None:
        raise BadRequest("the engine is not ready", code="engine_not_ready", status=503)
    room = min(state.context_length, state.max_total_tokens)
    generation = Generation(asked, room, state.engine, state.tokenizer, style.prefix)
    answer = Answer(generation, asked, state.model, state.tokenizer, state.capped)
    generation.start()
    try:
        if asked.stream:
            return await _stream(request, style, answer)
        while answer.reason is None:
            answer.add(await generation.next())
        return web.json_response(style.whole(answer))
    finally:
        generation.cancel()  # without effect when it is finished; else the client went away


async def _stream(request: web.Request, style: Style, answer: Answer) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    )
    await response.prepare(request)

    async def event(document: Document | None, usage: bool) -> None:
        if document is not None:
            if usage:
                document["usage"] = answer.generation.usage()
            await response.write(f"data: {json.dumps(document, ensure_ascii=False)}\n\n".encode())

    failure = ""
    try:
        await _send_events(style, answer, event)
    except BadRequest as error:
        failure = f"data: {json.dumps(error.body())}\n\n"
    except ConnectionResetError:
        return response
    with contextlib.suppress(ConnectionResetError):
        await response.write(f"{failure}data: [DONE]\n\n".encode())
        await response.write_eof()
    return response


async def _send_events(style: Style, answer: Answer, event: Callable[[Document | None, bool], Awaitable[None]]) -> None:
    """One event a step, then the finish reason, then the usage where asked for."""
    first = True
    while answer.reason is None:
        piece = await answer.generation.next()
        answer.add(piece)
        await event(style.piece(answer, piece, first), answer.asked.continuous_usage)
        first = False
    await event(style.last(answer), answer.asked.continuous_usage)
    if answer.asked.include_usage:
        await event(
            answer.envelope("text_completion" if isinstance(style, Completion) else "chat.completion.chunk", []), True
        )
