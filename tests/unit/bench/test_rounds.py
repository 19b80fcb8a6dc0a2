"""Rounds of a running engine: what ends them, and that the switch is always brought back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from bench_server import PLAN
from switch_server import Engine

from trispark_bench.plan import PlanError
from trispark_bench.rounds import LEAST_ROUNDS, ORDER, Rounds, RoundsPlan, run_rounds

ROUNDS: dict[str, Any] = {"protocol": 1, "switch": "x", "rounds": 8, "world": 3, "hold_s": 30}
PASSES = (LEAST_ROUNDS + 1) * len(ORDER)


def measured(engine: Engine, **change: Any) -> Rounds:
    results = Rounds()

    async def run() -> None:
        runner = web.AppRunner(engine.app(), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            bench = {**PLAN, "base_url": f"http://127.0.0.1:{runner.addresses[0][1]}", "deadline_s": 60}
            await run_rounds(RoundsPlan.from_json({**ROUNDS, "bench": bench, **change}), results)
        finally:
            await runner.cleanup()

    asyncio.run(run())
    return results


def test_rounds_go_off_on_on_off_and_one_more_goes_before() -> None:
    engine = Engine()
    results = measured(engine)
    assert results.ended is None
    assert [each["on"] for each in results.passes] == [False, True, True, False] * 9
    assert [each["round"] for each in results.passes] == [index for index in range(9) for _ in range(4)]
    epochs = [each["epoch"] for each in results.passes]
    assert epochs == list(range(41, 41 + PASSES))
    assert all([ack["rank"] for ack in each["acknowledged"]] == [0, 1, 2] for each in results.passes)
    assert [[request["workload"] for request in each["requests"]] for each in results.passes] == [
        ["prose", "code"]
    ] * 36
    assert engine.prompts[:16] == ["a", "b"] * 4 + ["a", "c"] * 4, "the passes of a round have the same prompts"
    assert results.restored == {"on": True, "declared": True, "epoch": 41 + PASSES, "verified": True, "why": ""}
    assert engine.orders[-1] is True
    assert set(engine.holds) == {30.0}
    assert results.identity[0] == results.identity[1]
    assert json.loads(json.dumps(results.as_json(), allow_nan=False))["ended"] is None


def test_a_switch_that_is_off_by_declaration_ends_off() -> None:
    engine = Engine()
    engine.on = engine.declared = False
    results = measured(engine)
    assert results.restored is not None
    assert (results.restored["on"], results.restored["verified"], engine.on) == (False, True, False)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("rank missing", "acknowledgement"),
        ("older epoch", "acknowledgement"),
        ("refused", "acknowledgement"),
        ("same epoch", "acknowledgement"),
        ("no acks", "acknowledgement"),
        ("turned", "acknowledgement"),
        ("other epoch", "acknowledgement"),
        ("other text", "repeat"),
        ("foreign", "traffic"),
        ("silent counters", "traffic"),
        ("failing", "request"),
        ("gone", "engine"),
    ],
)
def test_what_ends_the_rounds_and_the_way_back(fault: str, code: str) -> None:
    engine = Engine(fault)
    results = measured(engine)
    assert results.ended is not None
    assert results.ended["code"] == code, results.ended
    assert len(engine.orders) == 10, "the order that was spoiled, and the one that brings back"
    assert engine.on is True
    assert results.restored is not None
    assert results.restored["verified"]


def test_a_difference_is_the_switch_s_only_when_each_state_repeats_its_own() -> None:
    engine = Engine("switched text", at=0)
    results = measured(engine)
    assert (results.ended or {})["code"] == "difference", results.ended
    assert len(engine.orders) == len(ORDER) + 1, "to the end of the round, and the way back"
    assert "round 0: off 8 tokens" in (results.ended or {})["what"]
    assert (results.restored or {})["verified"]


@pytest.mark.parametrize("at", [2, 3, 4])
def test_an_engine_that_does_not_repeat_itself_says_nothing_of_the_switch(at: int) -> None:
    """The odd text of one pass of the first round: also where the first difference is between the states."""
    results = measured(Engine("other text", at=at))
    assert (results.ended or {})["code"] == "repeat", results.ended


def test_an_engine_that_is_gone_cannot_be_brought_back_and_that_is_said() -> None:
    class Broken(Engine):
        async def _switch(self, request: web.Request) -> web.Response:
            if len(self.orders) >= 5:
                self.orders.append(False)
                return web.Response(status=503)
            return await super()._switch(request)

    results = measured(Broken())
    assert (results.ended or {})["code"] == "engine"
    assert results.restored is not None
    assert results.restored["verified"] is False
    assert "goes back by itself after 30 s" in results.restored["why"]


def test_what_has_no_such_switch_is_never_turned() -> None:
    engine = Engine()
    results = measured(engine, switch="y")
    assert ((results.ended or {})["code"], results.restored, engine.orders) == ("engine", None, [])


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": 7},
        {"rounds": 65},
        {"world": 0},
        {"hold_s": 0},
        {"hold_s": 601},
        {"protocol": 2},
        {"rounds": "x"},
        {"bench": {}},
    ],
)
def test_what_is_no_plan(change: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        RoundsPlan.from_json({**ROUNDS, "bench": PLAN, **change})
    with pytest.raises(PlanError):
        RoundsPlan.from_json(None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_rounds_with_the_switch_brought_back(tmp_path: Path, number: int) -> None:
    """The client as a process of its own, ended in the middle of an answer."""
    in_answer = threading.Event()

    class Slow(Engine):
        async def _chat(self, request: web.Request) -> web.StreamResponse:
            if len(self.orders) == 3:
                in_answer.set()
                await asyncio.sleep(600)
            return await super()._chat(request)

    engine = Slow()
    found = ended_by(tmp_path, engine, number, in_answer, threading.Event())
    assert (found["ended"]["code"], found["restored"]["verified"], engine.on) == ("interrupted", True, True)
    assert len(found["passes"]) == 2


@pytest.mark.parametrize("fault", ["", "failing"])
def test_a_first_signal_during_the_way_back_does_not_hinder_it(tmp_path: Path, fault: str) -> None:
    """After whole rounds, and after some that ended by themselves."""
    last = PASSES + 1 if not fault else 10
    in_restore, signalled = threading.Event(), threading.Event()

    class SlowBack(Engine):
        async def _switch(self, request: web.Request) -> web.Response:
            answer = await super()._switch(request)
            if len(self.orders) == last:
                in_restore.set()
                await asyncio.to_thread(signalled.wait, 60)
            return answer

    engine = SlowBack(fault)
    found = ended_by(tmp_path, engine, signal.SIGTERM, in_restore, signalled)
    assert (found["restored"]["verified"], engine.on, len(engine.orders)) == (True, True, last)
    assert (found["ended"] or {}).get("code") == ("request" if fault else None), "what was measured is as it was"


def ended_by(
    work: Path, engine: Engine, number: int, ready: threading.Event, signalled: threading.Event
) -> dict[str, Any]:
    """The output of the client as a process of its own, signalled at `ready`. It catches the signal without a word, so
    the server is let go on by `signalled` only after the kernel has handed it over."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(engine.app(), shutdown_timeout=0.1, handler_cancellation=True)
    loop.run_until_complete(runner.setup())
    loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        bench = {**PLAN, "base_url": f"http://127.0.0.1:{runner.addresses[0][1]}"}
        (work / "input.json").write_text(json.dumps({**ROUNDS, "bench": bench}))
        argv = [sys.executable, "-m", "trispark_bench.rounds", str(work / "input.json"), str(work / "out.json")]
        source = str(Path(__file__).resolve().parents[3] / "src")
        with subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": source}) as process:
            assert ready.wait(60)
            process.send_signal(number)
            signalled.set()
            assert process.wait(60) == 0
    finally:
        signalled.set()
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
    found: dict[str, Any] = json.loads((work / "out.json").read_text())
    return found
