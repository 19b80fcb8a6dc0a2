"""Completions, generate, metrics, loads, key, tools and log probabilities over HTTP."""

import asyncio
import json
import math
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from trispark_lab.api import ApiState, make_app
from trispark_lab.api_generation import Generation
from trispark_lab.api_key import read_key
from trispark_lab.api_schema import parse_generate
from trispark_lab.engine_metrics import engine_metrics
from trispark_lab.errors import EngineError
from trispark_lab.metrics import Histogram, Metric, exposition
from trispark_lab.requests import Request
from trispark_lab.scheduler import QueueFull, Speculation, Unsupported
from trispark_lab.tokenizer import Tokenizer
from trispark_lab.verify_cap import parse_cap

MODEL = "lab-model"
CHAT = "/v1/chat/completions"
Client = TestClient[Any, Any]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def serve(engine: Any, tokenizer: Tokenizer, work: Callable[[Client], Awaitable[None]], **state: Any) -> None:
    async def run() -> None:
        fields = {"model": MODEL, "context_length": 4096, "max_total_tokens": 8192, "started": 1, **state}
        app = make_app(ApiState(server_info=lambda: {"version": "x"}, tokenizer=tokenizer, engine=engine, **fields))
        async with TestClient(TestServer(app)) as client:
            await work(client)

    asyncio.run(run())


def run_thread(scheduler: Any) -> Iterator[Any]:
    thread = threading.Thread(target=scheduler.run)
    thread.start()
    yield scheduler
    scheduler.stop()
    thread.join(20)


@pytest.fixture(scope="module")
def engine(cached_generator: Any) -> Iterator[Any]:
    yield from run_thread(cached_generator.scheduler(3, log_interval=2))


@pytest.fixture(scope="module")
def capped(cached_generator: Any) -> Iterator[Any]:
    yield from run_thread(cached_generator.scheduler(5, speculation=Speculation(cap=parse_cap("2", 5)), log_interval=2))


async def post(client: Client, path: str, status: int = 200, **body: Any) -> Any:
    response = await client.post(path, json={"model": MODEL, **body})
    assert response.status == status, await response.text()
    return await response.json()


async def ask(client: Client, content: str, status: int = 200, **more: Any) -> Any:
    return await post(client, CHAT, status, messages=[{"role": "user", "content": content}], **more)


async def events(client: Client, path: str, **body: Any) -> list[Any]:
    response = await client.post(path, json={"model": MODEL, "stream": True, **body})
    blocks = (await response.text()).strip().split("\n\n")
    assert blocks[-1] == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]


def test_completions(engine: Any, tokenizer: Tokenizer) -> None:
    async def work(client: Client) -> None:
        whole = await post(client, "/v1/completions", prompt="19+23=", temperature=0)
        assert whole["object"] == "text_completion"
        assert whole["choices"][0] == {"index": 0, "text": "42", "logprobs": None, "finish_reason": "stop"}
        ids = tokenizer.encode("19+23=")
        assert (await post(client, "/v1/completions", prompt=ids, temperature=0))["choices"][0]["text"] == "42"
        await post(client, "/v1/completions", 400, prompt=[1 << 30], temperature=0)
        await post(client, "/v1/completions", 400, prompt=["a", "b"], temperature=0)
        request = {"prompt": "Write an essay about bread.", "temperature": 0, "max_tokens": 12, "ignore_eos": True}
        options = {"include_usage": True, "continuous_usage_stats": True}
        parts = await events(client, "/v1/completions", **request, logprobs=1, stream_options=options)
        text = "".join(part["choices"][0]["text"] for part in parts[:-1])
        whole = await post(client, "/v1/completions", **request, logprobs=1)
        assert text == whole["choices"][0]["text"]
        logprobs = whole["choices"][0]["logprobs"]
        assert len(logprobs["tokens"]) == 12
        assert "".join(logprobs["tokens"]) == text
        assert [
            text[place:][: len(token)] for place, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True)
        ] == logprobs["tokens"]
        assert [place for part in parts[:-1] for place in part["choices"][0]["logprobs"]["text_offset"]] == logprobs[
            "text_offset"
        ]
        counts = [part["usage"]["completion_tokens"] for part in parts]
        assert counts == sorted(counts)
        assert counts[-1] == 12
        assert parts[-1]["choices"] == []

    serve(engine, tokenizer, work)


def test_generate_reports_what_verification_did(capped: Any, tokenizer: Tokenizer) -> None:
    async def work(client: Client) -> None:
        params = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
        text = "Write an essay about bread."
        answer = await post(client, "/generate", text=text, sampling_params=params)
        info = answer["meta_info"]
        assert answer["text"].startswith("Bread begins with patience.")
        assert info["prompt_tokens"] == 6
        assert info["completion_tokens"] == len(answer["output_ids"]) == 24
        assert info["cached_tokens"] == 0
        assert info["finish_reason"] == {"type": "length", "length": 24}
        steps, histogram = info["spec_verify_ct"], info["spec_correct_drafts_histogram"]
        assert sum(histogram) == steps
        assert len(histogram) <= 3, "two drafts are verified at most"
        assert sum(size * times for size, times in enumerate(histogram)) == info["spec_num_correct_drafts"]
        assert 23 <= steps + info["spec_num_correct_drafts"] <= 25
        assert info["spec_num_proposed_drafts"] == 5 * steps
        assert info["spec_accept_rate"] == info["spec_num_correct_drafts"] / (5 * steps)
        assert info["spec_accept_length"] == 24 / steps
        assert info["spec_cap_length"] == 3
        assert info["spec_cap_lens_histogram"] == [0, 0, steps]
        parts = await events(client, "/generate", text=text, sampling_params=params)
        assert parts[-1]["text"] == answer["text"]
        assert parts[-1]["meta_info"]["finish_reason"]["type"] == "length"
        assert parts[0]["meta_info"]["finish_reason"] is None
        ids = await post(
            client,
            "/generate",
            input_ids=tokenizer.encode("7+8="),
            sampling_params={"temperature": 0},
            return_logprob=True,
            top_logprobs_num=2,
        )
        assert ids["text"] == "15"
        assert len(ids["meta_info"]["output_top_logprobs"][0]) == 2
        assert ids["meta_info"]["output_token_logprobs"][0][1] == ids["output_ids"][0]
        await post(client, "/generate", 400, sampling_params=params)
        await post(client, "/generate", 400, text="a", input_ids=[3])

    serve(capped, tokenizer, work, capped=True)


def test_logprobs_are_of_the_target(engine: Any, tokenizer: Tokenizer) -> None:
    async def work(client: Client) -> None:
        answer = await ask(client, "19+23=", temperature=0, logprobs=True, top_logprobs=3)
        content = answer["choices"][0]["logprobs"]["content"]
        assert [entry["token"] for entry in content] == ["42", ""]
        assert bytes(content[0]["bytes"]) == b"42"
        best = [other["logprob"] for other in content[0]["top_logprobs"]]
        assert best == sorted(best, reverse=True)
        assert best[0] == content[0]["logprob"], "greedy takes the likeliest"
        assert math.exp(best[0]) > 0.5
        assert sum(math.exp(value) for value in best) <= 1 + 1e-9
        assert (await ask(client, "19+23=", temperature=0))["choices"][0]["logprobs"] is None

    serve(engine, tokenizer, work)


def test_seeds(engine: Any, tokenizer: Tokenizer) -> None:
    async def work(client: Client) -> None:
        request = {"temperature": 1.5, "max_tokens": 12, "ignore_eos": True}
        first = await ask(client, "Words that nobody wrote", **request)
        seed = first["metadata"]["seed"]
        again = await ask(client, "Words that nobody wrote", seed=seed, **request)
        other = await ask(client, "Words that nobody wrote", seed=seed ^ 1, **request)
        texts = [answer["choices"][0]["message"]["content"] for answer in (first, again, other)]
        assert texts[0] == texts[1] != texts[2]
        assert "metadata" not in await ask(client, "19+23=", temperature=0)
        stream = await events(client, CHAT, messages=[{"role": "user", "content": "x"}], seed=5, max_tokens=2)
        assert stream[-1]["metadata"] == {"seed": 5}
        zero = [await ask(client, "Words that nobody wrote", seed=0, **request) for _ in range(2)]
        assert [each["metadata"] for each in zero] == [{"seed": 0}] * 2
        assert zero[0]["choices"] == zero[1]["choices"]

    serve(engine, tokenizer, work)


def test_stop_texts_end_the_answer(engine: Any, tokenizer: Tokenizer) -> None:
    async def work(client: Client) -> None:
        prompt = "Write an essay about bread."
        request = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 40}
        whole = await post(client, CHAT, stop=[" Flour and", "zzz"], **request)
        assert whole["choices"][0]["message"]["content"] == "Bread begins with patience."
        assert whole["choices"][0]["finish_reason"] == "stop"
        parts = await events(client, CHAT, stop=" Flour and", **request)
        assert (
            "".join(part["choices"][0]["delta"].get("content", "") for part in parts) == "Bread begins with patience."
        )

    serve(engine, tokenizer, work)


class Talking:
    """An engine that gives these texts, one a step, and never ends by itself."""

    def __init__(self, tokenizer: Tokenizer, *texts: str) -> None:
        self.steps = [tokenizer.encode(text) for text in texts]
        self.cancelled: list[Request] = []

    def submit(self, request: Request) -> None:
        for tokens in self.steps:
            request.emit(tokens, None)

    def cancel(self, request: Request) -> None:
        self.cancelled.append(request)


def stopped(tokenizer: Tokenizer, stop: str | list[str], *texts: str) -> tuple[list[str], Generation, Talking]:
    """Texts of the pieces up to the end, or of all steps."""

    async def run() -> tuple[list[str], Generation, Talking]:
        engine, pieces = Talking(tokenizer, *texts), []
        asked = parse_generate({"text": "x", "sampling_params": {"temperature": 0, "stop": stop}})
        generation = Generation(asked, 100, engine, tokenizer, "")
        generation.start()
        for _ in texts:
            pieces.append(await generation.next())
            if pieces[-1].reason is not None:
                break
        return [piece.text for piece in pieces], generation, engine

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("stops", "text", "matched"),
    [
        ([" Flour", " begins"], "Bread", " begins"),
        ([" begins", " Flour"], "Bread", " begins"),
        ([" patience.", " with"], "Bread begins", " with"),
        ([" Flour"], "Bread begins with patience.", " Flour"),
    ],
)
def test_the_first_of_two_stop_texts_ends_the_answer(
    tokenizer: Tokenizer, stops: list[str], text: str, matched: str
) -> None:
    """Also when one step brings both."""
    for steps in (["Bread begins with patience. Flour"], ["Bread", " begins", " with", " patience", ".", " Flour"]):
        pieces, generation, _ = stopped(tokenizer, stops, *steps)
        assert "".join(pieces) == text
        assert generation.matched_stop == matched
        assert generation.meta_info("stop", False)["finish_reason"] == {"type": "stop", "matched": matched}


def test_a_stop_text_frees_the_slot(tokenizer: Tokenizer) -> None:
    """The engine is told when the text is found, not when the client has the answer."""
    pieces, generation, engine = stopped(tokenizer, " begins", "Bread", " begins", " with")
    assert pieces == ["Bread", ""]
    assert engine.cancelled == [generation.request]


def test_a_stream_never_sends_the_begin_of_a_stop_text(tokenizer: Tokenizer) -> None:
    steps = ["Bread", " begins", " with", " patience", "."]
    assert stopped(tokenizer, " begins without", *steps)[0] == ["Bread", "", "", " begins with patience", "."]


def test_a_tool_round(engine: Any, tokenizer: Tokenizer) -> None:
    async def work(client: Client) -> None:
        messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
        answer = await post(client, CHAT, messages=messages, tools=[TOOL], temperature=0)
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "get_weather"
        assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
        parts = await events(client, CHAT, messages=messages, tools=[TOOL], temperature=0)
        assert parts[-1]["choices"][0]["finish_reason"] == "tool_calls"
        streamed = parts[-1]["choices"][0]["delta"]["tool_calls"][0]
        assert (streamed["index"], streamed["function"]) == (0, call["function"])
        messages += [
            choice["message"],
            {"role": "tool", "tool_call_id": call["id"], "content": "18 degrees and cloudy"},
        ]
        final = (await post(client, CHAT, messages=messages, tools=[TOOL], temperature=0))["choices"][0]
        assert final["finish_reason"] == "stop"
        assert final["message"]["content"].strip() == "18 degrees and cloudy."
        plain = await post(
            client, CHAT, messages=messages[:1], tools=[TOOL], tool_choice="none", temperature=0, max_tokens=8
        )
        assert "tool_calls" not in plain["choices"][0]["message"]
        other = {"type": "function", "function": {"name": "get_time", "parameters": {"properties": {"city": {}}}}}
        foreign = await post(client, CHAT, messages=messages[:1], tools=[other], temperature=0)
        assert "tool_calls" not in foreign["choices"][0]["message"], "a tool that was not offered is never called"

    serve(engine, tokenizer, work)


SAMPLE = re.compile(r'([a-z0-9_:]+)\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\} (\S+)')


def parse_exposition(text: str) -> dict[str, tuple[str, list[tuple[str, dict[str, str], float]]]]:
    """{family: (type, samples)}; a strict reader of the text format."""
    families: dict[str, tuple[str, list[tuple[str, dict[str, str], float]]]] = {}
    name = ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            assert name not in families
            families[name] = ("", [])
        elif line.startswith("# TYPE "):
            assert line.split(" ")[2] == name
            families[name] = (line.split(" ")[3], [])
        else:
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            labels = dict(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', match[2]))
            assert match[1].startswith(name)
            families[name][1].append((match[1], labels, float(match[3])))
    return families


def test_exposition_of_values_histograms_and_labels() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.1, 0.5, 0.7, 3.0):
        histogram.observe(value)
    text = exposition(
        [Metric("a:x", "gauge", "one\nline", 1.5), Metric("a:h", "histogram", "h", histogram)], {"m": 'q"\\\n'}
    )
    families = parse_exposition(text)
    assert families["a:x"] == ("gauge", [("a:x", {"m": 'q\\"\\\\\\n'}, 1.5)])
    kind, samples = families["a:h"]
    assert kind == "histogram"
    assert [(labels.get("le"), value) for _, labels, value in samples] == [
        ("0.1", 1),
        ("1.0", 3),
        ("+Inf", 4),
        (None, 4.3),
        (None, 4),
    ]


def test_metrics_and_loads(capped: Any, tokenizer: Tokenizer) -> None:
    async def work(client: Client) -> None:
        before = parse_exposition(await (await client.get("/metrics")).text())
        answer = await post(
            client,
            "/generate",
            text="Write an essay about bread.",
            sampling_params={"temperature": 0, "max_new_tokens": 20, "ignore_eos": True},
        )
        response = await client.get("/metrics")
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        after = parse_exposition(await response.text())

        def grown(name: str) -> float:
            return float(after[f"sglang:{name}"][1][-1][2] - before[f"sglang:{name}"][1][-1][2])

        assert grown("generation_tokens_total") == 20
        assert grown("prompt_tokens_total") == 6
        assert grown("spec_verify_calls_total") == answer["meta_info"]["spec_verify_ct"]
        assert [
            grown(f"{name}_seconds") for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency")
        ] == [1, 19, 1]
        gauges = {name: samples[0][2] for name, (kind, samples) in after.items() if kind == "gauge"}
        assert gauges["sglang:spec_cap_length"] == 3
        assert 1 < gauges["sglang:spec_accept_length"] <= 3
        assert gauges["sglang:num_running_reqs"] == gauges["sglang:num_queue_reqs"] == 0
        assert after["sglang:num_running_reqs"][1][0][1]["model_name"] == MODEL
        loads = await (await client.get("/v1/loads")).json()
        assert loads["loads"] == [{"dp_rank": 0, "num_running_reqs": 0, "num_waiting_reqs": 0, "num_used_tokens": 0}]

    serve(capped, tokenizer, work, metrics=lambda: engine_metrics(capped), load=capped.load)


class Refusing:
    """An engine that takes nothing."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def submit(self, request: Request) -> None:
        raise self._error

    def cancel(self, request: Request) -> None:
        pass


@pytest.mark.parametrize(
    ("error", "status", "code", "message"),
    [
        (QueueFull(), 429, "queue_full", "queue is full"),
        (Unsupported("TS-ENGINE-SAMPLED-CAP: no"), 400, "unsupported_value", "TS-ENGINE-SAMPLED-CAP"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_does_not_take(
    tokenizer: Tokenizer, error: Exception, status: int, code: str, message: str, stream: bool
) -> None:
    async def work(client: Client) -> None:
        document = await ask(client, "x", status, stream=stream)
        assert document["error"]["code"] == code
        assert message in document["error"]["message"]

    serve(Refusing(error), tokenizer, work)


def test_small_endpoints(tokenizer: Tokenizer) -> None:
    busy = {"num_running_reqs": 0, "num_waiting_reqs": 0}

    async def work(client: Client) -> None:
        assert (await (await client.get("/get_server_info")).json()) == (
            await (await client.get("/server_info")).json()
        )
        assert (await client.post("/flush_cache")).status == 200
        busy["num_running_reqs"] = 2
        assert (await client.post("/flush_cache")).status == 400
        for path in ("/start_profile", "/stop_profile"):
            response = await client.post(path)
            assert response.status == 501
            assert (await response.json())["error"]["code"] == "TS-ENGINE-PROFILE"

    serve(None, tokenizer, work, load=lambda: busy)


def test_the_api_key(engine: Any, tokenizer: Tokenizer) -> None:
    async def work(client: Client) -> None:
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "k-1"}):
            response = await client.get("/v1/models", headers=header)
            assert response.status == 401
            assert (await response.json())["error"]["code"] == "invalid_api_key"
        assert (await client.get("/v1/models", headers={"Authorization": "Bearer k-1"})).status == 200
        assert (await client.get("/health")).status == 200
        assert (await client.get("/metrics")).status == 200
        assert (await client.post(CHAT, json={})).status == 401

    serve(engine, tokenizer, work, api_key="k-1")


@pytest.mark.parametrize(
    ("mode", "content", "good"),
    [
        (0o600, "k-1\n", True),
        (0o400, "k-1", True),
        (0o640, "k-1", False),
        (0o604, "k-1", False),
        (0o600, "", False),
        (0o600, "a b", False),
        (0o600, "x" * 5000, False),
    ],
)
def test_the_key_file(tmp_path: Path, mode: int, content: str, good: bool) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    path.chmod(mode)
    if good:
        assert read_key(path) == "k-1"
        return
    with pytest.raises(EngineError, match="TS-ENGINE-APIKEY") as caught:
        read_key(path)
    assert not content.strip() or content.strip() not in str(caught.value)


def test_a_link_or_nothing_is_no_key_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k")
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "link").symlink_to(tmp_path / "key")
    for name in ("link", "none"):
        with pytest.raises(EngineError, match="TS-ENGINE-APIKEY"):
            read_key(tmp_path / name)
