"""How the ranks find each other: one TCP meeting at rank 0, then one connection on each pair link.

Rank a listens for each higher rank on its own address of that pair's network, at a port of the kernel's choice; rank 0
collects the ports and gives the table to all. The higher rank connects from its own address, so that traffic of a pair
never leaves its network.
"""

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .config import PairLink
from .errors import EngineError, RankFailure
from .links import Mesh

MAX_LINE = 65536
RETRY_S = 0.1
HELLO_DEADLINE_S = 2.0


@dataclass(frozen=True)
class Meeting:
    """Who meets where. `facts` must be equal on all ranks (version, shapes, block size)."""

    rank: int
    world: int
    host: str
    port: int
    links: tuple[PairLink, ...]
    facts: Mapping[str, object]
    deadline_s: float
    step_deadline_s: float


def meet(meeting: Meeting, announce: Callable[[int], None] = lambda port: None) -> Mesh:
    """Mesh of this rank. `announce` is told the meeting port on rank 0. EngineError or RankFailure when it fails."""
    end = time.monotonic() + meeting.deadline_s
    listeners: dict[int, socket.socket] = {}
    peers: dict[int, socket.socket] = {}
    try:
        for link in meeting.links:
            if link.peer > meeting.rank:
                listeners[link.peer] = _listen(link.local, 0)
        own = {str(peer): listener.getsockname()[1] for peer, listener in listeners.items()}
        table = _host(meeting, own, end, announce) if meeting.rank == 0 else _join(meeting, own, end)
        for link in meeting.links:
            if link.peer < meeting.rank:
                peers[link.peer] = _connect_pair(meeting.rank, link, table, end)
        for link in meeting.links:
            if link.peer > meeting.rank:
                peers[link.peer] = _accept_pair(listeners[link.peer], link, end)
        for connection in peers.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        for connection in peers.values():
            connection.close()
        raise
    finally:
        for listener in listeners.values():
            listener.close()
    return Mesh(meeting.rank, peers, meeting.step_deadline_s)


def _listen(address: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        raise EngineError(
            "TS-ENGINE-BIND",
            "address can not be used",
            where=f"{address}:{port}",
            expected="a free port on an address of this node",
            observed=error.strerror or str(error),
            remedy="check --pair-link and --dist-init-addr, and what holds the port",
        ) from error
    listener.listen(16)
    return listener


def _left(end: float) -> float:
    return max(end - time.monotonic(), 0.001)


def _read_line(connection: socket.socket, end: float) -> dict[str, Any] | None:
    """The object of the next line and not a byte more: a peer that is ahead sends its first frame behind it."""
    data = bytearray()
    try:
        while not data.endswith(b"\n") and len(data) < MAX_LINE:
            connection.settimeout(_left(end))
            part = connection.recv(1)
            if not part:
                return None
            data += part
        document = json.loads(data)
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _write_line(connection: socket.socket, document: Mapping[str, object]) -> None:
    connection.sendall(json.dumps(document).encode() + b"\n")


def _host(
    meeting: Meeting, own: dict[str, int], end: float, announce: Callable[[int], None]
) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {"0": own}
    guests: dict[int, socket.socket] = {}
    try:
        with _listen(meeting.host, meeting.port) as listener:
            announce(listener.getsockname()[1])
            while len(guests) < meeting.world - 1:
                missing = [rank for rank in range(1, meeting.world) if rank not in guests]
                if time.monotonic() >= end:
                    raise _absent(missing, meeting)
                listener.settimeout(_left(end))
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                guest = _welcome(connection, missing, meeting, end)
                if guest is not None:
                    guests[guest[0]] = connection
                    table[str(guest[0])] = guest[1]
        for rank, connection in guests.items():
            try:
                _write_line(connection, {"table": table})
            except OSError as error:
                raise RankFailure(
                    rank, "is gone", where="rendezvous", expected="an open connection", observed=str(error)
                ) from error
    finally:
        for connection in guests.values():
            connection.close()
    return table


def _welcome(
    connection: socket.socket, missing: Sequence[int], meeting: Meeting, end: float
) -> tuple[int, dict[str, int]] | None:
    """(rank, its ports) of a guest; None for a stray client, which is sent away. RankFailure for other facts."""
    hello = _read_line(connection, min(end, time.monotonic() + HELLO_DEADLINE_S)) or {}
    rank, ports = hello.get("rank"), hello.get("ports")
    if not isinstance(rank, int) or rank not in missing or not isinstance(ports, dict):
        connection.close()
        return None
    problem = _difference(meeting.facts, hello.get("facts"))
    if problem is not None:
        with connection:
            _write_line(connection, {"refused": problem})
        raise RankFailure(
            rank, "runs something else", where="rendezvous", expected="the facts of rank 0", observed=problem
        )
    return rank, ports


def _absent(missing: Sequence[int], meeting: Meeting) -> RankFailure:
    others = f" (missing: {list(missing)})" if len(missing) > 1 else ""
    return RankFailure(
        missing[0],
        f"did not come{others}",
        where=f"rendezvous {meeting.host}:{meeting.port}",
        expected=f"{meeting.world} ranks within {meeting.deadline_s:g} s",
        observed=f"{meeting.world - len(missing)} ranks",
    )


def _difference(mine: Mapping[str, object], theirs: object) -> str | None:
    if not isinstance(theirs, dict):
        return "no facts"
    for name in sorted({*mine, *theirs}):
        if mine.get(name) != theirs.get(name):
            return f"{name}={theirs.get(name)!r}, rank 0 has {mine.get(name)!r}"
    return None


def _join(meeting: Meeting, own: dict[str, int], end: float) -> dict[str, dict[str, int]]:
    observed = "no answer"
    while time.monotonic() < end:
        try:
            with socket.create_connection((meeting.host, meeting.port), timeout=min(2.0, _left(end))) as connection:
                _write_line(connection, {"rank": meeting.rank, "facts": dict(meeting.facts), "ports": own})
                answer = _read_line(connection, end)
        except OSError as error:
            observed = error.strerror or str(error)
            time.sleep(RETRY_S)
            continue
        if answer is not None and "refused" in answer:
            raise RankFailure(
                0, "refused this rank", where="rendezvous", expected="equal facts", observed=str(answer["refused"])
            )
        if answer is not None and isinstance(answer.get("table"), dict):
            table: dict[str, dict[str, int]] = answer["table"]
            return table
        observed = "connection closed"
        time.sleep(RETRY_S)
    raise RankFailure(
        0,
        "did not answer",
        where=f"rendezvous {meeting.host}:{meeting.port}",
        expected=f"an answer within {meeting.deadline_s:g} s",
        observed=observed,
    )


def _connect_pair(rank: int, link: PairLink, table: Mapping[str, Mapping[str, int]], end: float) -> socket.socket:
    observed = "no answer"
    while time.monotonic() < end:
        try:
            connection = socket.create_connection(
                (link.remote, table[str(link.peer)][str(rank)]),
                timeout=min(2.0, _left(end)),
                source_address=(link.local, 0),
            )
        except OSError as error:
            observed = error.strerror or str(error)
            time.sleep(RETRY_S)
            continue
        try:
            _write_line(connection, {"pair": rank})
            return connection
        except OSError as error:
            observed = error.strerror or str(error)
            connection.close()
    raise RankFailure(
        link.peer,
        "is not reached",
        where=f"pair link {link.local} to {link.remote}",
        expected="a connection",
        observed=observed,
    )


def _accept_pair(listener: socket.socket, link: PairLink, end: float) -> socket.socket:
    while time.monotonic() < end:
        listener.settimeout(_left(end))
        try:
            connection, address = listener.accept()
        except TimeoutError:
            break
        hello = _read_line(connection, end) if address[0] == link.remote else None
        if hello == {"pair": link.peer}:
            return connection
        connection.close()
    raise RankFailure(
        link.peer,
        "did not connect",
        where=f"pair link {link.local} from {link.remote}",
        expected="a connection",
        observed="none",
    )
