import queue
import socket
import threading
import time
from typing import Any

import pytest

from trispark_lab.collective import Collective
from trispark_lab.config import PairLink
from trispark_lab.errors import EngineError, RankFailure
from trispark_lab.links import Mesh
from trispark_lab.rendezvous import Meeting, _accept_pair, _listen, meet

LOCAL = "127.0.0.1"


def meeting(rank: int, port: int, deadline_s: float = 20, **facts: object) -> Meeting:
    links = tuple(PairLink(peer, LOCAL, LOCAL) for peer in range(3) if peer != rank)
    return Meeting(rank, 3, LOCAL, port, links, facts, deadline_s, 20)


class Ranks:
    """Ranks that meet in threads; `results` holds a mesh or an exception each."""

    def __init__(self) -> None:
        self.port: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.results: dict[int, Any] = {}
        self.threads: list[threading.Thread] = []

    def start(self, item: Meeting) -> None:
        def run() -> None:
            try:
                self.results[item.rank] = meet(item, self.port.put)
            except EngineError as error:
                self.results[item.rank] = error

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def wait(self) -> None:
        for thread in self.threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self.threads)

    def close(self) -> None:
        for result in self.results.values():
            if isinstance(result, Mesh):
                result.close()


def test_a_first_frame_right_behind_the_greeting_is_left_to_the_mesh() -> None:
    """A peer goes on when its own side is connected; what it sends then may lie beside its greeting already."""
    with _listen(LOCAL, 0) as listener, socket.create_connection(listener.getsockname()) as peer:
        peer.sendall(b'{"pair": 1}\n' + b"first frame")
        with _accept_pair(listener, PairLink(1, LOCAL, LOCAL), time.monotonic() + 5) as connection:
            connection.settimeout(5)
            assert connection.recv(64) == b"first frame"


def test_three_ranks_meet_whatever_knocks_first() -> None:
    ranks = Ranks()
    ranks.start(meeting(0, 0, k=3))
    port = ranks.port.get(timeout=10)
    for noise in (b"GET / HTTP/1.1\r\n\r\n\n", b"{}\n", b'{"rank": 0}\n', b'{"rank": 9}\n', b""):
        with socket.create_connection((LOCAL, port)) as stray:
            stray.sendall(noise)
    ranks.start(meeting(2, port, k=3))
    ranks.start(meeting(1, port, k=3))
    ranks.wait()
    assert all(isinstance(ranks.results[rank], Mesh) for rank in range(3)), ranks.results
    threads = [threading.Thread(target=Collective(ranks.results[rank]).barrier, args=("x",)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    ranks.close()


def test_a_rank_with_other_facts_is_refused_by_name() -> None:
    ranks = Ranks()
    ranks.start(meeting(0, 0, version="1"))
    ranks.start(meeting(1, ranks.port.get(timeout=10), version="2"))
    ranks.wait()
    assert "rank 1 runs something else" in str(ranks.results[0])
    assert "version='2', rank 0 has '1'" in str(ranks.results[1])


def test_absent_ranks_are_named() -> None:
    with pytest.raises(RankFailure, match=r"rank 1 did not come \(missing: \[1, 2\]\)"):
        meet(meeting(0, 0, deadline_s=0.05))


def test_an_absent_head_is_named() -> None:
    with socket.socket() as bound:
        bound.bind((LOCAL, 0))  # bound and not listening: refuses
        with pytest.raises(RankFailure, match="rank 0 did not answer"):
            meet(meeting(1, bound.getsockname()[1], deadline_s=0.05))


def test_a_port_in_use_is_one_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind((LOCAL, 0))
        taken.listen()
        with pytest.raises(EngineError, match="TS-ENGINE-BIND"):
            meet(meeting(0, taken.getsockname()[1]))
