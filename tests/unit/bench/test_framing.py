"""Bodies come out of HTTP/1.1 framing whole, wherever the reads were cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark_bench.framing import Body, FramingError, read_head

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n"


def chunked(parts: list[bytes], trailer: bytes = b"") -> bytes:
    framed = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts if part)
    return framed + b"0\r\n" + trailer + b"\r\n"


def take(reads: list[tuple[int, bytes]]) -> tuple[bytes, bool, list[tuple[int, bytes]]]:
    """(body, complete, pieces) when the head is read from the first reads and the others are fed one by one."""
    for count in range(1, len(reads) + 1):
        begun = read_head(reads[:count])
        if begun is not None:
            head, rest = begun
            body = Body(head)
            complete = body.feed(rest)
            for read in reads[count:]:
                complete = body.feed([read])
            return b"".join(data for _, data in body.pieces), complete, body.pieces
    raise AssertionError("no head")


@given(
    st.lists(st.binary(max_size=20), max_size=5),
    st.lists(st.integers(0, 300), max_size=10),
    st.sampled_from([b"", b"X-Sum: 1\r\n", b"A: 1\r\nB: 2\r\n"]),
)
def test_chunks_cut_anywhere(parts: list[bytes], cuts: list[int], trailer: bytes) -> None:
    raw = HEAD + chunked(parts, trailer)
    edges = sorted({0, len(raw), *(min(cut, len(raw)) for cut in cuts)})
    reads = [(at, raw[begin:end]) for at, (begin, end) in enumerate(itertools.pairwise(edges))]
    body, complete, pieces = take(reads)
    assert body == b"".join(parts)
    assert complete
    assert all(data for _, data in pieces)
    assert [at for at, _ in pieces] == sorted(at for at, _ in pieces)


def test_each_piece_has_the_time_of_its_read() -> None:
    _, _, pieces = take([(5, HEAD + b"3\r\nab"), (7, b"c\r\n2\r\nde\r\n"), (9, b"0\r\n\r\n")])
    assert pieces == [(5, b"ab"), (7, b"c"), (7, b"de")]


@pytest.mark.parametrize(
    ("raw", "body", "complete"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", b"abc", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc", b"abc", False),
        (b"HTTP/1.0 200 OK\r\n\r\nabc", b"abc", False),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", b"a", True),
        (HEAD + b"3;x=y\r\nabc\r\n0\r\n\r\n", b"abc", True),
        (HEAD + b"A\r\n0123456789\r\n", b"0123456789", False),
    ],
)
def test_bodies(raw: bytes, body: bytes, complete: bool) -> None:
    assert take([(0, raw)])[:2] == (body, complete)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "begins with"),
        (b"\x15\x03\x01\x00\x02\x02", "begins with"),
        (b"HTTP/1.1 OK\r\n\r\n", "status line"),
        (b"HTTP/2 200\r\n\r\n", "status line"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", "encoded"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab", "longer"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70000, "head of more"),
        (HEAD + b"zz\r\n", "size"),
        (HEAD + b"\r\n", "size"),
        (HEAD + b"1\r\nabc\r\n", "after a chunk"),
        (HEAD + b"0\r\n\r\nmore\r\n", "follow"),
        (HEAD + b"1" * 2000, "does not end"),
    ],
)
def test_what_is_no_answer_is_refused_by_name(raw: bytes, message: str) -> None:
    with pytest.raises(FramingError, match=message):
        take([(0, raw)])
