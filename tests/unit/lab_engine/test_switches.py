"""Switches of a running engine: every rank turns at one step boundary and says so, and no output changes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request
from local_ranks import Loading, Schedule, local_ranks, schedule_of
from toy_model import ToyDraft, ToyModel, toy_scheduler

from trispark_lab.api import ApiState, make_app
from trispark_lab.api_fields import BadRequest
from trispark_lab.api_switches import Administration, require_administrator
from trispark_lab.collective import Collective
from trispark_lab.errors import EngineError, RankFailure
from trispark_lab.links import Mesh
from trispark_lab.requests import Request
from trispark_lab.steps import StepRunner
from trispark_lab.switches import (
    MAX_HOLD_S,
    Acknowledgement,
    Order,
    RankSwitches,
    SwitchBoard,
    Turned,
    exchange,
)
from trispark_lab.tokenizer import Tokenizer

BOTH = ("engram_prefetch", "engram_cache")
PROMPT = "The lighthouse keeper climbed the stairs and "


class Part:
    """One rank's part of a switch; `stuck` takes no order, `broken` fails."""

    def __init__(self, kind: str = "") -> None:
        self.on = True
        self._kind = kind

    def turn(self, on: bool) -> None:
        if self._kind == "broken":
            raise RuntimeError("no")
        if self._kind != "stuck":
            self.on = on


def mesh_of(world: int, deadline_s: float) -> list[Mesh]:
    peers: list[dict[int, socket.socket]] = [{} for _ in range(world)]
    for low in range(world):
        for high in range(low + 1, world):
            peers[low][high], peers[high][low] = socket.socketpair()
    return [Mesh(rank, peers[rank], deadline_s) for rank in range(world)]


# -- one rank


@pytest.mark.parametrize(
    ("part", "name", "expected"),
    [
        (Part(), "x", Acknowledgement(3, False, False)),
        (Part("stuck"), "x", Acknowledgement(3, True, True)),
        (Part("broken"), "x", Acknowledgement(3, True, True)),
        (Part(), "y", Acknowledgement(3, False, True)),
    ],
    ids=["turns", "does-not-turn", "fails", "has-none"],
)
def test_a_rank_says_what_it_is_in(part: Part, name: str, expected: Acknowledgement) -> None:
    said: list[str] = []
    switches = RankSwitches({"x": part}, said.append)
    assert switches.obey(Order(3, name, False)) == expected
    assert switches.epoch == 3
    assert len(said) == 1
    assert ("refused" in said[0]) is expected.refused
    assert Acknowledgement.decode(expected.encode()) == expected
    assert Order.decode(Order(7, "a_b", True).encode()) == Order(7, "a_b", True)


@pytest.mark.parametrize(
    ("acks", "agreed"),
    [
        ([(4, False, False)] * 3, True),
        ([(4, False, False), (3, False, False), (4, False, False)], False),
        ([(4, False, False), (4, True, False), (4, False, False)], False),
        ([(4, False, False), (4, False, False), (4, False, True)], False),
    ],
    ids=["all", "older-epoch", "other-state", "refused"],
)
def test_ranks_agree_only_in_epoch_and_state(acks: list[tuple[int, bool, bool]], agreed: bool) -> None:
    found = {rank: Acknowledgement(*ack) for rank, ack in enumerate(acks)}
    turned = Turned(Order(4, "x", False), found)
    assert turned.agreed is agreed
    assert turned.as_json()["agreed"] is agreed


# -- rank 0


class Orders:
    """What rank 0 sends, acknowledged by one rank, or refused."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sent: list[Order] = []
        self.refuse = False
        self.switches = RankSwitches({"x": Part()})
        self.board = SwitchBoard(self.switches, self._send, lambda: self.now)

    def _send(self, order: Order) -> dict[int, Acknowledgement]:
        self.sent.append(order)
        ack = self.switches.obey(order)
        return {0: Acknowledgement(ack.epoch, ack.on, self.refuse)}


def test_every_order_has_the_next_epoch_and_ends_by_itself() -> None:
    orders = Orders()
    assert orders.board.turn("x", False, 10).agreed
    assert orders.board.state() == {"x": {"on": False, "declared": True, "epoch": 1}}
    orders.now = 9.9
    assert orders.board.expire() == []
    orders.board.turn("x", False, 10)  # holds on
    orders.now = 19.8
    assert orders.board.expire() == []
    orders.now = 19.9
    assert [turned.agreed for turned in orders.board.expire()] == [True]
    assert orders.board.state() == {"x": {"on": True, "declared": True, "epoch": 3}}
    orders.now = 1e9
    assert orders.board.expire() == []
    assert [order.epoch for order in orders.sent] == [1, 2, 3]


def test_what_is_declared_needs_no_end_and_a_refused_way_back_is_tried_again() -> None:
    orders = Orders()
    orders.board.turn("x", False, 10)
    orders.board.turn("x", True, 10)
    orders.now = 1e6
    assert orders.board.expire() == []
    orders.refuse = True
    orders.board.turn("x", False, 10)
    orders.now += 10
    assert [turned.agreed for turned in orders.board.expire()] == [False]
    assert orders.board.expire() == []
    orders.refuse = False
    orders.now += MAX_HOLD_S
    assert [turned.agreed for turned in orders.board.expire()] == [True]


def test_an_order_that_makes_no_sense_is_given_to_nobody() -> None:
    orders = Orders()
    for hold_s in (0, -1, MAX_HOLD_S + 1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="hold_s"):
            orders.board.turn("x", False, hold_s)
    with pytest.raises(KeyError):
        orders.board.turn("y", False, 1)
    assert orders.sent == []


# -- three ranks


def test_a_rank_that_does_not_acknowledge_is_named() -> None:
    """Rank 2 gets the order and says nothing; rank 0 waits as long as for any step, and ends."""
    meshes = mesh_of(3, 0.4)
    collectives = [Collective(mesh) for mesh in meshes]
    switches = [RankSwitches({"x": Part()}) for _ in range(3)]
    failures: list[RankFailure] = []

    def second() -> None:
        received = collectives[1].next_broadcast("a step", 20, lambda: False)
        assert received is not None
        try:
            exchange(switches[1], collectives[1], Order.decode(received[1]))
        except RankFailure as failure:
            failures.append(failure)

    thread = threading.Thread(target=second)
    thread.start()
    try:
        with pytest.raises(RankFailure) as caught:
            StepRunner(_NoModel(), collectives[0]).switch(switches[0], Order(1, "x", False))  # type: ignore[arg-type]
    finally:
        thread.join(20)
        for mesh in meshes:
            mesh.close()
    assert (caught.value.rank, "switch epoch 1" in caught.value.where) == (2, True)
    assert [failure.rank for failure in failures] in ([2], [0])


class _NoModel:
    class config:
        max_ngram = 4


@pytest.fixture(scope="module")
def ranks(checkpoint: Path, packed: Path, tokenizer: Tokenizer, tmp_path_factory: Any) -> Iterator[Any]:
    loading = Loading(prefetch="on", cache=("0.001", "4"))
    with local_ranks(checkpoint, packed, tmp_path_factory.mktemp("none"), tokenizer, loading) as found:
        yield found


def scheduler_of(ranks: Any) -> Any:
    return schedule_of(ranks.runner, ranks.draft, ranks.tokenizer, ranks.models[0].config, Schedule())


def output(ranks: Any, at_step: dict[int, Callable[[], object]] | None = None) -> tuple[list[int], int]:
    """A greedy output, with something done before some of its steps; and how many steps it took."""
    scheduler = scheduler_of(ranks)
    request = Request(tuple(ranks.tokenizer.encode(PROMPT)), 40, True, lambda tokens, reason: None)
    scheduler.submit(request)
    done = 0
    while True:
        (at_step or {}).get(done, lambda: None)()
        if not scheduler.step():
            return request.output, done
        done += 1


@pytest.mark.parametrize("name", BOTH)
def test_all_ranks_turn_and_nothing_of_the_output_changes(ranks: Any, name: str) -> None:
    board = ranks.board()
    reference, _ = output(ranks)
    for on in (False, True, True, False, True):
        turned = board.turn(name, on, 60)
        assert turned.agreed
        assert {rank: ack.epoch for rank, ack in turned.acknowledged.items()} == dict.fromkeys(
            range(3), turned.order.epoch
        )
        assert [switches.switches[name].on for switches in ranks.switches] == [on] * 3
        assert output(ranks)[0] == reference


@pytest.mark.parametrize("name", BOTH)
def test_a_turn_while_a_request_runs_changes_nothing_of_it(ranks: Any, name: str) -> None:
    board = ranks.board()
    reference, steps = output(ranks)
    assert steps > 6
    states = iter([False, True, False, True])
    turns = {step: lambda: board.turn(name, next(states), 60) for step in (1, 3, 4, 6)}
    assert output(ranks, turns) == (reference, steps)
    assert board.state()[name]["on"] is True


def test_what_is_off_does_not_act(ranks: Any) -> None:
    board = ranks.board()
    for adapter in ranks.adapters:
        assert adapter.prefetch is not None
    board.turn("engram_prefetch", False, 60)
    served = [adapter.prefetch.served for adapter in ranks.adapters]
    synchronous = [adapter.prefetch.synchronous for adapter in ranks.adapters]
    output(ranks)
    assert [adapter.prefetch.served for adapter in ranks.adapters] == served
    assert all(now.prefetch.synchronous > before for now, before in zip(ranks.adapters, synchronous, strict=True))
    board.turn("engram_prefetch", True, 60)
    output(ranks)
    assert all(now.prefetch.served > before for now, before in zip(ranks.adapters, served, strict=True))
    assert not any("disabled" in line for adapter in ranks.adapters for line in adapter.said)

    board.turn("engram_cache", False, 60)
    before = ranks.counts(1)
    output(ranks)
    past = [now - old for now, old in zip(ranks.counts(1), before, strict=True)]
    assert all(count.hits == 0 and count.reads == count.lookups > 0 for count in past), "and the gate's sum holds"
    board.turn("engram_cache", True, 60)
    before = ranks.counts(1)
    output(ranks)
    through = [now - old for now, old in zip(ranks.counts(1), before, strict=True)]
    assert all(count.hits > 0 and count.reads == count.lookups - count.hits for count in through)


def test_a_rank_without_the_switch_is_no_agreement(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ranks.switches[2].switches, "engram_cache")
    board = ranks.board()
    turned = board.turn("engram_cache", False, 60)
    assert not turned.agreed
    assert {rank: ack.refused for rank, ack in turned.acknowledged.items()} == {0: False, 1: False, 2: True}
    monkeypatch.undo()
    assert board.turn("engram_cache", True, 60).agreed


# -- between the steps


def test_an_order_is_run_between_two_steps_also_of_an_idle_engine() -> None:
    scheduler = toy_scheduler(ToyModel(), 3, None, ToyDraft())
    thread = threading.Thread(target=scheduler.run, args=(20.0,))
    thread.start()
    try:
        assert scheduler.at_boundary(lambda: threading.current_thread().name).result(20) == thread.name
        with pytest.raises(ZeroDivisionError):
            scheduler.at_boundary(lambda: 1 // 0).result(20)
        assert scheduler.at_boundary(lambda: "still here").result(20) == "still here"
    finally:
        scheduler.stop()
        thread.join(20)
    with pytest.raises(CancelledError):
        scheduler.at_boundary(lambda: "too late").result(20)


def test_ranks_that_are_not_together_end_the_engine() -> None:
    scheduler = toy_scheduler(ToyModel(), 3, None, ToyDraft())
    failure = RankFailure(2, "did not answer", where="switch", expected="an answer", observed="none")

    def order() -> None:
        raise failure

    first, second = scheduler.at_boundary(order), scheduler.at_boundary(lambda: None)
    with pytest.raises(EngineError, match="rank 2"):
        scheduler.run(20.0)
    assert first.exception(0) is failure
    assert second.cancelled()


# -- the endpoint


def answered(value: Any) -> Future[object]:
    found: Future[object] = Future()
    if isinstance(value, BaseException):
        found.set_exception(value)
    else:
        found.set_result(value)
    return found


def call(
    work: Callable[[TestClient[Any, Any]], Any], result: Any = None, key: str | None = None, ready: bool = True
) -> list[tuple[str, bool, float]]:
    asked: list[tuple[str, bool, float]] = []

    def turn(name: str, on: bool, hold_s: float) -> Future[object]:
        asked.append((name, on, hold_s))
        if result is not None:
            return answered(result)
        return answered(Turned(Order(1, name, on), {0: Acknowledgement(1, on, False)}))

    async def run() -> None:
        state = ApiState("m", 4096, 8192, dict, 1, api_key=key)
        if ready:
            state.administration = Administration(lambda: {"x": {"on": True, "declared": True, "epoch": 0}}, turn)
        async with TestClient(TestServer(make_app(state))) as client:
            await work(client)

    asyncio.run(run())
    return asked


async def post(client: TestClient[Any, Any], body: Any, headers: Any = None) -> tuple[int, Any]:
    response = await client.post("/lab/switch", json=body, headers=headers)
    return response.status, await response.json()


def test_an_order_is_answered_with_what_each_rank_said() -> None:
    async def work(client: TestClient[Any, Any]) -> None:
        status, body = await post(client, {"name": "x", "on": False, "hold_s": 5})
        assert (status, body["agreed"], body["epoch"]) == (200, True, 1)
        assert body["acknowledged"] == [{"rank": 0, "epoch": 1, "on": False, "refused": False}]
        response = await client.get("/lab/switches")
        assert await response.json() == {"switches": {"x": {"on": True, "declared": True, "epoch": 0}}}

    assert call(work) == [("x", False, 5.0)]


@pytest.mark.parametrize(
    ("result", "status", "code"),
    [
        (
            Turned(Order(1, "x", False), {0: Acknowledgement(1, False, False), 1: Acknowledgement(1, True, True)}),
            409,
            "",
        ),
        (RankFailure(2, "is silent", where="w", expected="e", observed="o"), 503, "TS-ENGINE-RANK"),
        (CancelledError(), 503, "engine_not_ready"),
    ],
    ids=["refused", "silent", "ending"],
)
def test_what_is_no_agreement_is_no_success(result: Any, status: int, code: str) -> None:
    async def work(client: TestClient[Any, Any]) -> None:
        found, body = await post(client, {"name": "x", "on": False})
        assert found == status
        assert body["agreed"] is False if not code else body["error"]["code"] == code

    call(work, result)


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"name": "x"},
        {"name": "x", "on": 1},
        {"name": "x", "on": None},
        {"name": "x", "on": True, "hold_s": 0},
        {"name": "x", "on": True, "hold_s": MAX_HOLD_S + 1},
        {"name": "x", "on": True, "hold": 1},
        {"name": "y", "on": True},
        {"name": ["x"], "on": True},
    ],
)
def test_what_is_no_order_reaches_no_rank(body: Any) -> None:
    async def work(client: TestClient[Any, Any]) -> None:
        status, answer = await post(client, body)
        assert status in (400, 404), answer

    assert call(work) == []


def test_it_needs_the_key_where_there_is_one_and_a_ready_engine() -> None:
    async def with_key(client: TestClient[Any, Any]) -> None:
        order = {"name": "x", "on": False}
        assert (await post(client, order))[0] == 401
        assert (await post(client, order, {"Authorization": "Bearer other"}))[0] == 401
        assert (await client.get("/lab/switches")).status == 401
        assert (await post(client, order, {"Authorization": "Bearer secret"}))[0] == 200

    assert len(call(with_key, key="secret")) == 1

    async def starting(client: TestClient[Any, Any]) -> None:
        assert (await post(client, {"name": "x", "on": False}))[0] == 503

    assert call(starting, ready=False) == []


@pytest.mark.parametrize(
    ("remote", "allowed"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("10.77.0.11", False), ("", False), ("fe80::1%e", False)],
)
def test_without_a_key_it_is_for_this_host_alone(remote: str, allowed: bool) -> None:
    request = make_mocked_request("POST", "/lab/switch").clone(remote=remote)
    if allowed:
        require_administrator(request, None)
        return
    with pytest.raises(BadRequest) as caught:
        require_administrator(request, None)
    assert (caught.value.status, caught.value.code) == (403, "not_local")
