import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from trispark_lab.collective import Collective, from_bf16, to_bf16
from trispark_lab.e4m3 import E4M3_VALUES, UE8M0_VALUES
from trispark_lab.errors import RankFailure
from trispark_lab.links import FRAME, Mesh

Meshes = list[Mesh]


@pytest.fixture
def make_meshes() -> Iterator[Callable[[float], Meshes]]:
    made: Meshes = []

    def make(deadline_s: float) -> Meshes:
        peers: list[dict[int, socket.socket]] = [{}, {}, {}]
        for low, high in ((0, 1), (0, 2), (1, 2)):
            peers[low][high], peers[high][low] = socket.socketpair()
        made.extend(Mesh(rank, peers[rank], deadline_s) for rank in range(3))
        return made

    yield make
    for mesh in made:
        mesh.close()


def on_ranks(ranks: Sequence[int], work: Callable[[int], Any]) -> list[Any]:
    """Run `work` for these ranks at the same time; results or failures in their order."""
    results: list[Any] = [None] * len(ranks)

    def run(index: int) -> None:
        try:
            results[index] = work(ranks[index])
        except RankFailure as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return results


@pytest.mark.parametrize("size", [1, 3, 1_000_000])
def test_every_rank_gets_the_same_bits_in_rank_order(make_meshes: Callable[[float], Meshes], size: int) -> None:
    collectives = [Collective(mesh) for mesh in make_meshes(20)]
    parts = [np.random.default_rng(rank).standard_normal(size).astype(np.float32) for rank in range(3)]
    results = on_ranks(range(3), lambda rank: collectives[rank].all_reduce("x", parts[rank]))
    expected = (parts[0] + parts[1]) + parts[2]
    assert all(np.array_equal(result.view(np.uint32), expected.view(np.uint32)) for result in results)


def test_rows_travel_as_bf16_without_loss() -> None:
    values = (E4M3_VALUES[:, None] * UE8M0_VALUES[None, 20:235]).astype(np.float32)
    finite = values[np.isfinite(values)]
    assert np.array_equal(from_bf16(to_bf16(finite)), finite)


def test_bf16_sum(make_meshes: Callable[[float], Meshes]) -> None:
    collectives = [Collective(mesh) for mesh in make_meshes(20)]
    parts = [np.full((2, 3), rank + 1, dtype=np.float32) for rank in range(3)]
    results = on_ranks(range(3), lambda rank: collectives[rank].all_reduce_bf16("x", to_bf16(parts[rank])))
    assert all(np.array_equal(result, np.full((2, 3), 6.0)) for result in results)


def test_broadcasts_arrive_in_order(make_meshes: Callable[[float], Meshes]) -> None:
    collectives = [Collective(mesh) for mesh in make_meshes(20)]

    def head() -> None:
        collectives[0].broadcast("x", 0, b"abc")
        collectives[0].broadcast("x", 3, b"")

    def worker(rank: int) -> list[Any]:
        return [collectives[rank].next_broadcast("x", 20, lambda: False) for _ in range(2)]

    results = on_ranks(range(3), lambda rank: worker(rank) if rank else head())
    assert results[1:] == [[(0, b"abc"), (3, b"")]] * 2


def test_a_dead_peer_is_named_by_both_others(make_meshes: Callable[[float], Meshes]) -> None:
    meshes = make_meshes(20)
    meshes[2].close()
    results = on_ranks(range(2), lambda rank: Collective(meshes[rank]).barrier("step 7"))
    assert [result.rank for result in results] == [2, 2]
    assert all("TS-ENGINE-RANK: rank 2 is gone [where: step 7]" in str(result) for result in results)


HALVES = {"none": b"", "head": FRAME.pack(1, 1, 4)[:7], "payload": FRAME.pack(1, 1, 4) + b"ab"}


@pytest.mark.parametrize("answer", HALVES)
@pytest.mark.parametrize("sends", [True, False])
def test_a_peer_that_dies_while_we_wait_for_it_is_named(answer: str, sends: bool) -> None:
    """It takes what we send; its answer never comes, or ends in the middle."""
    left, right = socket.socketpair()
    with left:
        mesh = Mesh(1, {0: right}, 20)
        left.sendall(HALVES[answer])
        left.shutdown(socket.SHUT_WR)  # it still reads, so that sending is no failure

        def wait() -> object:
            return mesh.exchange("step 7", 1, memoryview(b"abcd")) if sends else mesh.receive_from("step 7", 0, 20)

        with pytest.raises(RankFailure, match=r"rank 0 is gone \[where: step 7\].*observed: connection closed"):
            wait()
        mesh.close()


def test_a_broadcast_to_a_dead_peer_is_no_success(make_meshes: Callable[[float], Meshes]) -> None:
    meshes = make_meshes(20)
    meshes[1].close()
    with pytest.raises(RankFailure, match=r"rank 1 is gone \[where: tokens\]"):
        Collective(meshes[0]).broadcast("tokens", 0, b"abc")


def test_a_hung_peer_is_named_after_the_deadline(make_meshes: Callable[[float], Meshes]) -> None:
    meshes = make_meshes(0.05)
    values = np.zeros(4, dtype=np.float32)
    results = on_ranks((0, 2), lambda rank: Collective(meshes[rank]).all_reduce("logits", values))
    assert [result.rank for result in results] == [1, 1]
    assert all("rank 1 did not answer [where: logits]" in str(result) for result in results)


def test_a_peer_that_stops_reading_is_named(make_meshes: Callable[[float], Meshes]) -> None:
    meshes = make_meshes(0.05)
    with pytest.raises(RankFailure, match="did not answer"):
        meshes[0].send_all("tokens", 1, bytes(64 << 20))


def test_a_peer_at_another_operation_is_named(make_meshes: Callable[[float], Meshes]) -> None:
    meshes = make_meshes(20)
    meshes[1]._sequence = 5
    results = on_ranks(range(3), lambda rank: Collective(meshes[rank]).barrier("x"))
    assert results[0].rank == 1
    assert results[2].rank == 1
    assert "is at another operation" in str(results[0])


def test_a_worker_may_give_up_waiting(make_meshes: Callable[[float], Meshes]) -> None:
    assert make_meshes(20)[1].receive_from("x", 0, 20, lambda: True) is None


def test_an_absurd_frame_ends_the_connection() -> None:
    left, right = socket.socketpair()
    with left:
        mesh = Mesh(1, {0: right}, 5)
        left.sendall(FRAME.pack(1, 1, 1 << 50))
        with pytest.raises(RankFailure, match="rank 0 is gone"):
            mesh.receive_from("x", 0, 5)
        mesh.close()


def test_a_world_of_one_sums_to_itself() -> None:
    values = np.ones(3, dtype=np.float32)
    collective = Collective(None)
    collective.barrier("x")
    collective.broadcast("x", 0, b"")
    assert np.array_equal(collective.all_reduce("x", values), values)
