import asyncio
import io
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from trispark_lab.api import ApiState, make_app
from trispark_lab.requests import Request
from trispark_lab.tokenizer import Tokenizer

MODEL = "lab-model"
PATH = "/v1/chat/completions"


def body(**changes: object) -> dict[str, object]:
    return {"model": MODEL, "temperature": 0, "messages": [{"role": "user", "content": "19+23="}], **changes}


class Silent:
    """An engine which takes requests and says nothing."""

    def __init__(self) -> None:
        self.request: Request | None = None
        self.submitted = threading.Event()
        self.cancelled = threading.Event()

    def submit(self, request: Request) -> None:
        self.request = request
        self.submitted.set()

    def cancel(self, request: Request) -> None:
        self.cancelled.set()


class Stopping(Silent):
    """An engine which ends what it takes at once."""

    def submit(self, request: Request) -> None:
        super().submit(request)
        request.emit([], "abort")


def serve(engine: Any, tokenizer: Tokenizer, work: Callable[[TestClient[Any, Any]], Awaitable[None]]) -> None:
    async def run() -> None:
        state = ApiState(MODEL, 256, 512, lambda: {"version": "x", "internal_states": [{}]}, 1, tokenizer, engine)
        server = TestServer(make_app(state))
        async with TestClient(server) as client:
            await work(client)

    asyncio.run(run())


@pytest.fixture
def engine(generator: Any) -> Iterator[Any]:
    scheduler = generator.scheduler()
    thread = threading.Thread(target=scheduler.run)
    thread.start()
    yield scheduler
    scheduler.stop()
    thread.join(20)


def test_an_answer_with_usage(engine: Any, tokenizer: Tokenizer) -> None:
    async def work(client: TestClient[Any, Any]) -> None:
        response = await client.post(PATH, json=body())
        document = await response.json()
        assert response.status == 200
        assert document["object"] == "chat.completion"
        assert document["model"] == MODEL
        assert document["choices"][0]["message"] == {"role": "assistant", "content": "42"}
        assert document["choices"][0]["finish_reason"] == "stop"
        assert document["usage"] == {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}

    serve(engine, tokenizer, work)


@pytest.mark.parametrize("continuous", [False, True])
def test_a_stream_gives_the_same_text_in_fewer_events_than_tokens(
    engine: Any, tokenizer: Tokenizer, continuous: bool
) -> None:
    async def work(client: TestClient[Any, Any]) -> None:
        messages = [{"role": "user", "content": [{"type": "text", "text": "Write an essay about lighthouses."}]}]
        request = body(messages=messages, max_tokens=30, ignore_eos=True)
        whole = await (await client.post(PATH, json=request)).json()
        options = {"include_usage": True, "continuous_usage_stats": continuous}
        response = await client.post(PATH, json={**request, "stream": True, "stream_options": options})
        assert response.headers["Content-Type"].startswith("text/event-stream")
        blocks = (await response.text()).strip().split("\n\n")
        assert blocks[-1] == "data: [DONE]"
        events = [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]
        *content, finish, usage = events
        text = "".join(event["choices"][0]["delta"]["content"] for event in content)
        assert text == whole["choices"][0]["message"]["content"]
        assert content[0]["choices"][0]["delta"]["role"] == "assistant"
        assert 1 < len(content) < 30
        assert finish["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "length"}
        assert usage["choices"] == []
        assert usage["usage"] == whole["usage"]
        assert usage["usage"]["completion_tokens"] == 30
        counts = [event["usage"]["completion_tokens"] for event in content if "usage" in event]
        assert len(counts) == (len(content) if continuous else 0)
        assert counts == sorted(counts)

    serve(engine, tokenizer, work)


BAD = [
    ("{", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ("[]", "JSON object"),
    (body(model="other"), "'other' is not served"),
    (body(temperature=-0.1), "temperature must be from 0 to 2"),
    (body(temperature=2.1), "temperature must be from 0 to 2"),
    (body(top_p=0), "top_p must be above 0"),
    (body(top_p=1.1), "top_p must be from 0 to 1"),
    (body(top_k=0), "top_k must be -1"),
    (body(top_k=1.5), "top_k must be an integer"),
    (body(seed=-1), "seed must be an integer"),
    (body(seed=1 << 63), "seed must be an integer"),
    (body(temperature="0"), "temperature must be a number"),
    (body(max_tokens=0), "max_tokens must be a positive integer"),
    (body(max_tokens=True), "max_tokens must be a positive integer"),
    (body(max_tokens=2.5), "max_tokens must be a positive integer"),
    (body(max_tokens=253), "max_tokens=253 and a prompt of 4 tokens exceed 256"),
    (body(max_completion_tokens=253), "max_tokens=253"),
    (body(messages=[]), "at least one message"),
    (body(messages=[{"role": "user", "content": ""}]), "empty"),
    (body(messages=[{"role": "robot", "content": "x"}]), "role"),
    (body(messages=["x"]), "role"),
    (body(messages=[{"role": "user"}]), "text content"),
    (body(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "only text parts"),
    (body(messages=[{"role": "user", "content": "\ud800"}]), "surrogate"),
    (body(messages=[{"role": "user", "content": "19 " * 300}]), "leaves no room in 256"),
    (body(stream="yes"), "stream must be true or false"),
    (body(ignore_eos=1), "ignore_eos must be true or false"),
    (body(stream_options={"include_usage": True}), "needs stream=true"),
    (body(stream=True, stream_options=[]), "must be an object"),
    (body(n=2), "n=2 is not supported"),
    (body(top_logprobs=2), "top_logprobs needs logprobs"),
    (body(logprobs=True, top_logprobs=21), "top_logprobs must be an integer from 0 to 20"),
    (body(tools=[{}]), "tools[0] must be a function"),
    (body(tools={}), "tools must be a list"),
    (body(tool_choice="required"), "tool_choice"),
    (body(stop=["\n"] * 5), "stop must be"),
    (body(stop=3), "stop must be"),
    (body(response_format={"type": "json_object"}), "response_format="),
]


@pytest.mark.parametrize(("content", "message"), BAD, ids=[str(index) for index in range(len(BAD))])
def test_bad_requests_are_refused_with_one_message(tokenizer: Tokenizer, content: object, message: str) -> None:
    silent = Stopping()

    async def work(client: TestClient[Any, Any]) -> None:
        data = content if isinstance(content, str) else json.dumps(content)
        response = await client.post(PATH, data=data)
        document = await response.json()
        assert response.status == 400
        assert message in document["error"]["message"]
        assert document["error"]["type"] == "invalid_request_error"
        assert set(document["error"]) == {"message", "type", "param", "code"}

    serve(silent, tokenizer, work)
    assert silent.request is None


def test_neutral_fields_are_accepted(tokenizer: Tokenizer, engine: Any) -> None:
    async def work(client: TestClient[Any, Any]) -> None:
        neutral = {
            "n": 1,
            "logprobs": False,
            "tools": [],
            "stop": None,
            "top_p": 0.9,
            "seed": 3,
            "presence_penalty": 0.0,
        }
        response = await client.post(PATH, json=body(chat_template_kwargs={"thinking": False}, **neutral))
        assert response.status == 200

    serve(engine, tokenizer, work)


def test_before_it_is_warmed(tokenizer: Tokenizer) -> None:
    async def work(client: TestClient[Any, Any]) -> None:
        assert (await client.get("/health")).status == 503
        response = await client.post(PATH, json=body())
        assert response.status == 503
        assert (await response.json())["error"]["code"] == "engine_not_ready"
        assert (await client.get("/v1/models")).status == 200

    serve(None, tokenizer, work)


def test_other_endpoints(tokenizer: Tokenizer) -> None:
    async def work(client: TestClient[Any, Any]) -> None:
        assert (await client.get("/health")).status == 200
        assert (await (await client.get("/v1/models")).json())["data"][0]["id"] == MODEL
        assert (await (await client.get("/server_info")).json())["version"] == "x"
        missing = await client.get("/nothing")
        assert missing.status == 404
        assert "GET /nothing" in (await missing.json())["error"]["message"]
        assert (await client.get(PATH)).status == 405
        assert (await client.post(PATH, data=io.BytesIO(b"x" * (17 << 20)))).status == 413

    serve(Silent(), tokenizer, work)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_cancels_its_request(tokenizer: Tokenizer, stream: bool) -> None:
    silent = Silent()

    async def work() -> None:
        state = ApiState(MODEL, 256, 512, dict, 1, tokenizer, silent)
        server = TestServer(make_app(state))
        await server.start_server()
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            data = json.dumps(body(stream=stream)).encode()
            head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
            writer.write(head.encode() + data)
            await writer.drain()
            assert await asyncio.to_thread(silent.submitted.wait, 10)
            writer.close()
            await writer.wait_closed()
            assert await asyncio.to_thread(silent.cancelled.wait, 10)
        finally:
            await server.close()

    asyncio.run(work())


@pytest.mark.parametrize("stream", [False, True])
def test_a_stopping_engine_says_so(tokenizer: Tokenizer, stream: bool) -> None:
    async def work(client: TestClient[Any, Any]) -> None:
        response = await client.post(PATH, json=body(stream=stream))
        assert response.status == (200 if stream else 503)
        assert "the engine is stopping" in await response.text()

    serve(Stopping(), tokenizer, work)
