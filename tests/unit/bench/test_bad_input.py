"""What a server, a network or a disk can do to a measurement, and what the client answers."""

from __future__ import annotations

import asyncio
import datetime
import json
import resource
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from bench_server import DONE, PLAN, answer, event, last, one, run, send, server_info, serving, usage

from trispark_bench import wire
from trispark_bench.__main__ import main
from trispark_bench.plan import BenchPlan
from trispark_bench.rawfile import RawFile
from trispark_bench.run import Aborted, Results, run_plan

SOURCES = Path(__file__).resolve().parents[3] / "src"


async def raw_server(talk: Callable[[bytes], bytes | None], use: Callable[[str], Awaitable[Any]]) -> Any:
    """A server that answers a request with these bytes and closes; None hangs up without a word."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
        said = talk(body)
        if said is not None:
            writer.write(said)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        return await use(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")


def whole(parts: list[bytes]) -> bytes:
    body = b"".join(parts)
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def raw_one(talk: Callable[[bytes], bytes | None]) -> Any:
    """The sample of the one request that counts; warm-up and counters are answered well."""
    good = whole([event({"content": "x"}, usage=usage(2)), last(2), DONE])
    info = b'HTTP/1.1 200 OK\r\nContent-Length: 23\r\n\r\n{"internal_states":[{}]}'.replace(b"23", b"24")

    def answered(body: bytes) -> bytes | None:
        if not body:
            return info
        return good if json.loads(body)["max_tokens"] == 2 else talk(body)

    async def use(base: str) -> Results:
        change = {"repetitions": 1, "concurrency": [1], "workloads": {"prose": PLAN["workloads"]["prose"]}}
        plan = BenchPlan.from_json({**PLAN, "base_url": base, **change})
        results = Results(plan)
        await run_plan(plan, results)
        return results

    (sample,) = asyncio.run(raw_server(answered, use)).requests
    return sample


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
FIRST = event({"content": "x"})


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (None, "closed the connection without an answer"),
        (b"", "closed the connection without an answer"),
        (CHUNKED[:30], "closed the connection in the middle of its answer"),
        (CHUNKED + b"%x\r\n%s\r\n" % (len(FIRST), FIRST), "in the middle of its answer; 1 events had come"),
        (CHUNKED + b"0\r\n\r\n", r"without \[DONE\] after 0 events"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", r"without \[DONE\] after 0 events"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + FIRST, r"without \[DONE\] after 1 events"),
        (b"\x15\x03\x01\x00\x02\x02\x50", "is not HTTP/1.1: it begins with"),
        (CHUNKED + b"xyz\r\n", "is not HTTP/1.1: a chunk's size"),
        (whole([FIRST, b"data: \xc5"]), "within an event"),
    ],
    ids=[
        "no answer",
        "hung up",
        "dies in the head",
        "dies in the stream",
        "empty stream",
        "empty body",
        "ends early",
        "tls alert",
        "broken chunks",
        "cut in a character",
    ],
)
def test_an_answer_that_is_none_is_an_error_with_its_cause(said: bytes | None, message: str) -> None:
    sample = raw_one(lambda _: said)
    assert sample.completion_tokens is None
    assert __import__("re").search(message, sample.error)


def test_a_body_that_ends_with_the_connection_is_read() -> None:
    parts = [event({"content": "x"}, usage=usage(8)), last(8), DONE]
    sample = raw_one(lambda _: b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"".join(parts))
    assert (sample.completion_tokens, sample.error) == (8, None)


def test_a_huge_line_ends_its_request_and_not_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_ANSWER_BYTES", 1 << 20)

    async def handler(request: web.Request) -> web.StreamResponse:
        return await send(request, [b"data: " + b"x" * (3 << 20), b"\n\n", last(8), DONE])

    assert one(handler).error.startswith("the answer is longer than 1 MiB")


def test_a_long_line_within_bounds_is_read() -> None:
    text = "x" * (1 << 20)

    async def handler(request: web.Request) -> web.StreamResponse:
        return await send(request, [event({"content": text}, usage=usage(8)), last(8), DONE])

    sample = one(handler)
    assert (sample.content_chars, sample.error) == (1 << 20, None)


def test_a_server_that_is_gone_fails_each_request_that_is_left() -> None:
    """It dies after the first window: what was measured stays, and nobody waits."""
    keep = Results(BenchPlan.from_json(PLAN))

    async def use(base: str) -> None:
        keep.plan = BenchPlan.from_json({**PLAN, "base_url": base})
        count = {"n": 0}

        async def info(request: web.Request) -> web.StreamResponse:
            count["n"] += 1
            return await server_info(request)

        del info
        await run_plan(keep.plan, keep)

    calls = {"n": 0}

    async def info(request: web.Request) -> web.StreamResponse:
        calls["n"] += 1
        if calls["n"] == 3:
            assert request.transport is not None
            request.transport.abort()
        return await server_info(request)

    with pytest.raises(RuntimeError, match="/server_info"):
        asyncio.run(serving(answer, use, info=info))
    assert len(keep.windows) == 1
    assert all(sample.error is None for sample in keep.requests)


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that signs itself."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            key,
            "-out",
            cert,
            "-days",
            "2",
            "-subj",
            "/CN=127.0.0.1",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )
    return key, cert


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, str]:
    key, cert = certificate(tmp_path_factory.mktemp("tls"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, str(cert)


def test_a_server_with_a_known_certificate_is_measured(tls: tuple[ssl.SSLContext, str]) -> None:
    results = run(answer, tls=tls[0], change={"ca_file": tls[1], "repetitions": 1})
    assert all(sample.error is None for sample in results.requests)
    assert {sample.stamps for sample in results.requests} == {"read"}


def test_a_certificate_that_nobody_signed_ends_the_run(tls: tuple[ssl.SSLContext, str]) -> None:
    with pytest.raises(Aborted, match=r"warm-up, prose: no connection: SSLCertVerificationError"):
        run(answer, tls=tls[0])


def test_tls_towards_a_plain_server_ends_the_run() -> None:
    async def use(base: str) -> None:
        plan = BenchPlan.from_json({**PLAN, "base_url": base.replace("http:", "https:")})
        await run_plan(plan, Results(plan))

    with pytest.raises(Aborted, match="no connection: SSLError"):
        asyncio.run(serving(answer, use))


def test_a_key_goes_with_every_request_and_a_wrong_one_ends_the_run() -> None:
    async def guarded(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != "Bearer right":
            return web.Response(status=401, text="send the API key")
        return await (server_info if request.method == "GET" else answer)(request)

    right = run(guarded, info=guarded, change={"api_key": "right", "repetitions": 1})
    assert all(sample.error is None for sample in right.requests)
    with pytest.raises(Aborted, match="HTTP 401: send the API key") as caught:
        run(guarded, info=guarded, change={"api_key": "wrong-key"})
    assert "wrong-key" not in str(caught.value)
    assert "wrong-key" not in repr(BenchPlan.from_json({**PLAN, "api_key": "wrong-key"}).target())


def test_durations_do_not_follow_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the time of day is an hour later than the one before."""
    real, looks = datetime.datetime.now(datetime.UTC), iter(range(1, 10**6))
    jumping = type("Jumping", (), {"now": staticmethod(lambda _zone: real + datetime.timedelta(hours=next(looks)))})
    monkeypatch.setattr("trispark_bench.run.datetime", jumping)
    monkeypatch.setattr(time, "time", lambda: 3600.0 * next(looks))
    monkeypatch.setattr(time, "time_ns", lambda: 3_600_000_000_000 * next(looks))
    results = run(answer)
    assert {sample.stamps for sample in results.requests} == {"read"}, "no stamp of the kernel is believed then"
    assert all(0 < sample.total_s < 60 for sample in results.requests)
    assert all(0 < wave["wall_s"] < 60 for wave in results.waves)
    assert all(0 < window["wall_s"] < 60 for window in results.windows)
    assert results.windows[0]["began"] < results.windows[0]["ended"]


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity"])
def test_what_a_server_says_of_itself_that_is_no_number_is_none(tmp_path: Path, number: str) -> None:
    """The output is JSON; the measurement must not end because of a gauge that nobody reads."""

    async def info(_: web.Request) -> web.Response:
        text = f'{{"version": "1", "startup_time": {number}, "internal_states": [{{"gauge": {number}}}]}}'
        return web.Response(text=text, content_type="application/json")

    async def use(base: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(client, tmp_path, base)

    done: subprocess.CompletedProcess[str] = asyncio.run(serving(answer, use, info=info))
    assert (done.returncode, done.stderr) == (0, "")
    output = json.loads((tmp_path / "output.json").read_text())
    assert {phase["before"]["gauge"] for phase in output["server_info"]} == {None}


class Full(RawFile):
    """A disk with room for so many bytes."""

    room = 2000

    def _write(self, line: bytes) -> None:
        left = self.room - self._size
        super()._write(line[: max(0, left)])
        if left < len(line):
            raise OSError(28, "No space left on device")


def test_a_full_disk_keeps_every_row_that_was_written(tmp_path: Path) -> None:
    keep = Results(BenchPlan.from_json(PLAN))
    raw = Full(tmp_path / "raw.jsonl")
    with pytest.raises(OSError, match="No space left"):
        run(answer, keep=keep, raw=raw)
    raw.close()
    rows = [json.loads(line) for line in (tmp_path / "raw.jsonl").read_text().splitlines()]
    assert 0 < len(rows) == raw.rows < len(keep.requests)
    assert rows == json.loads(json.dumps([sample.as_json() for sample in keep.requests[: len(rows)]]))


def client(tmp_path: Path, base: str, *, limit: int | None = None, **change: Any) -> subprocess.CompletedProcess[str]:
    """The client's process; `limit`: the most bytes that it may write to a file."""
    (tmp_path / "input.json").write_text(json.dumps({**PLAN, "base_url": base, **change}))

    def bound() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit or resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    argv = [sys.executable, "-m", "trispark_bench", str(tmp_path / "input.json"), str(tmp_path / "output.json")]
    env = {"PYTHONPATH": str(SOURCES), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False, preexec_fn=bound)


def process(tmp_path: Path, handler: Any = answer, **change: Any) -> subprocess.CompletedProcess[str]:
    async def use(base: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(client, tmp_path, base, **change)

    done: subprocess.CompletedProcess[str] = asyncio.run(serving(handler, use))
    return done


def test_the_process_writes_its_output(tmp_path: Path) -> None:
    done = process(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    output = json.loads((tmp_path / "output.json").read_text())
    assert (output["protocol"], len(output["requests"]), "ended" in output) == (2, 12, False)
    assert len((tmp_path / "raw.jsonl").read_text().splitlines()) == 12


def test_a_real_full_disk_is_named_and_the_rows_stay(tmp_path: Path) -> None:
    done = process(tmp_path, limit=3000)
    assert done.returncode == 1
    assert done.stderr.startswith("TS-BENCH-DISK: ")
    lines = (tmp_path / "raw.jsonl").read_text().splitlines()
    assert lines
    assert all(json.loads(line)["error"] is None for line in lines)
    assert not (tmp_path / "output.tmp").exists()


def test_a_run_that_ended_early_leaves_what_it_has(tmp_path: Path) -> None:
    calls = {"n": 0}

    async def handler(request: web.Request) -> web.StreamResponse:
        calls["n"] += 1
        if calls["n"] < 14:
            return await answer(request)
        await asyncio.Event().wait()
        raise AssertionError

    done = process(tmp_path, handler, silence_s=0.5)
    assert done.returncode == 1
    assert done.stderr.startswith("TS-BENCH-RUN: the measurement ended early")
    assert "Silence: nothing came for 0.5 s" in done.stderr
    output = json.loads((tmp_path / "output.json").read_text())
    assert output["requests"]
    assert output["ended"] == done.stderr.strip()


def test_the_time_for_all_of_it_ends_a_run(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    done = process(tmp_path, handler, deadline_s=0.5)
    assert done.returncode == 1
    assert "the end within 0.5 s; observed: TimeoutError" in done.stderr


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"base_url": 5}', "NaN"])
def test_an_input_that_is_none_is_refused(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "input.json").write_text(text)
    assert main([str(tmp_path / "input.json"), str(tmp_path / "output.json")]) == 2
    assert capsys.readouterr().err.startswith("TS-BENCH-INPUT: ")
    assert list(tmp_path.iterdir()) == [tmp_path / "input.json"]
