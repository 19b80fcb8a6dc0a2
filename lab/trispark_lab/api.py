"""HTTP API of the head: health, models, server information, chat completions."""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from .api_schema import DEFAULT_MAX_TOKENS, BadRequest, ChatRequest, parse_chat
from .requests import Request
from .tokenizer import StreamDecoder, Tokenizer

MAX_BODY_BYTES = 16 << 20


class Engine(Protocol):
    """What the API needs of the engine."""

    def submit(self, request: Request) -> None:
        """Queue a request."""

    def cancel(self, request: Request) -> None:
        """Drop a request."""


@dataclass
class ApiState:
    """Filled by the server: `engine` is None until warmed."""

    model: str
    context_length: int
    max_total_tokens: int
    server_info: Callable[[], dict[str, object]]
    started: int
    tokenizer: Tokenizer | None = None
    engine: Engine | None = None


STATE = web.AppKey("state", ApiState)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except BadRequest as error:
        return web.json_response(error.body(), status=error.status)
    except web.HTTPException as error:
        body = BadRequest(f"{request.method} {request.path}: {error.reason}", code="http_error", status=error.status)
        return web.json_response(body.body(), status=error.status, headers=_allow(error))


def _allow(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}


def make_app(state: ApiState) -> web.Application:
    """The application; `state` may change while it runs."""
    app = web.Application(middlewares=[_errors], client_max_size=MAX_BODY_BYTES)
    app[STATE] = state
    app.add_routes(
        [
            web.get("/health", _health),
            web.get("/v1/models", _models),
            web.get("/server_info", _server_info),
            web.post("/v1/chat/completions", _chat),
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


class _Generation:
    """One request on its way: tokens come from the engine's thread, text goes to the client."""

    def __init__(self, state: ApiState, chat: ChatRequest, engine: Engine, tokenizer: Tokenizer) -> None:
        prompt = tuple(tokenizer.encode(chat.text))
        max_tokens = chat.max_tokens
        room = min(state.context_length, state.max_total_tokens) - len(prompt)
        if room < 1:
            raise BadRequest(
                f"the prompt has {len(prompt)} tokens, which leaves no room in {room + len(prompt)}",
                "messages",
                code="context_length_exceeded",
            )
        if max_tokens is not None and max_tokens > room:
            raise BadRequest(
                f"max_tokens={max_tokens} and a prompt of {len(prompt)} tokens exceed {room + len(prompt)}",
                "max_tokens",
                code="context_length_exceeded",
            )
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[list[int], str | None]] = asyncio.Queue()

        def emit(tokens: list[int], reason: str | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(queue.put_nowait, (tokens, reason))

        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.model = state.model
        self.prompt_tokens = len(prompt)
        self.completion_tokens = 0
        self._queue = queue
        self._engine = engine
        self._decoder = StreamDecoder(tokenizer)
        self._request = Request(prompt, max_tokens or min(room, DEFAULT_MAX_TOKENS), chat.ignore_eos, emit)

    def start(self) -> None:
        self._engine.submit(self._request)

    def cancel(self) -> None:
        self._engine.cancel(self._request)

    async def next(self) -> tuple[str, str | None]:
        """(text, finish reason) of the next step. BadRequest 503 when the engine ends."""
        tokens, reason = await self._queue.get()
        if reason == "abort":
            raise BadRequest("the engine is stopping", code="engine_stopping", status=503)
        self.completion_tokens += len(tokens)
        return self._decoder.feed(tokens, final=reason is not None), reason

    def usage(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }

    def envelope(self, kind: str, choices: list[dict[str, object]]) -> dict[str, object]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


async def _chat(request: web.Request) -> web.StreamResponse:
    state = request.app[STATE]
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        raise BadRequest("the body is not JSON") from error
    chat = parse_chat(body, state.model)
    if state.engine is None or state.tokenizer is None:
        raise BadRequest("the engine is not ready", code="engine_not_ready", status=503)
    generation = _Generation(state, chat, state.engine, state.tokenizer)
    generation.start()
    try:
        return await (_stream(request, generation, chat) if chat.stream else _whole(generation))
    finally:
        generation.cancel()  # without effect when it is finished; else the client went away


async def _whole(generation: _Generation) -> web.Response:
    parts: list[str] = []
    reason: str | None = None
    while reason is None:
        text, reason = await generation.next()
        parts.append(text)
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(parts)},
        "logprobs": None,
        "finish_reason": reason,
    }
    return web.json_response({**generation.envelope("chat.completion", [choice]), "usage": generation.usage()})


async def _stream(request: web.Request, generation: _Generation, chat: ChatRequest) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    )
    await response.prepare(request)

    async def event(choices: list[dict[str, object]], usage: bool) -> None:
        document = generation.envelope("chat.completion.chunk", choices)
        if usage:
            document["usage"] = generation.usage()
        await response.write(f"data: {json.dumps(document, ensure_ascii=False)}\n\n".encode())

    failure = ""
    try:
        await _send_events(generation, chat, event)
    except BadRequest as error:
        failure = f"data: {json.dumps(error.body())}\n\n"
    except ConnectionResetError:
        return response
    with contextlib.suppress(ConnectionResetError):
        await response.write(f"{failure}data: [DONE]\n\n".encode())
        await response.write_eof()
    return response


async def _send_events(
    generation: _Generation, chat: ChatRequest, event: Callable[[list[dict[str, object]], bool], Awaitable[None]]
) -> None:
    """One event a step, then the finish reason, then the usage where asked for."""
    reason: str | None = None
    first = True
    while reason is None:
        text, reason = await generation.next()
        delta: dict[str, object] = {"role": "assistant", "content": text} if first else {"content": text}
        if first or text:
            await event([{"index": 0, "delta": delta, "finish_reason": None}], chat.continuous_usage)
        first = False
    await event([{"index": 0, "delta": {}, "finish_reason": reason}], chat.continuous_usage)
    if chat.include_usage:
        await event([], True)
