"""Events do not depend on where the reads were cut; their times do, and belong to the read with the last byte."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark_bench.sse import events


def whole(body: bytes) -> list[bytes]:
    found, rest = events([(0, body)])
    assert rest == b""
    return [event.data for event in found]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\r\n\r\n", [b"a"]),
        (b"data: a\r\r", [b"a"]),
        (b"data: a\n\r\n", [b"a"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data\n\n", [b""]),
        (b": a comment\n\n", []),
        (b": ping\n\ndata: a\n\n: ping\n\n", [b"a"]),
        (b"event: x\nid: 7\nretry: 5\ndata: a\n\n", [b"a"]),
        (b"event: x\n\ndata: a\n\n", [b"a"]),
        (b"database: no\n\n", []),
        (b"data: a\n\ndata: b\n\ndata: [DONE]\n\n", [b"a", b"b", b"[DONE]"]),
        ("data: Žluťoučký 🐎\n\n".encode(), ["Žluťoučký 🐎".encode()]),
        (b"", []),
    ],
)
def test_lines_make_events(body: bytes, expected: list[bytes]) -> None:
    assert whole(body) == expected


@pytest.mark.parametrize("tail", [b"data: b", b"data: b\n", b"da", b": half", b"data: b\r\ndata: c"])
def test_what_did_not_end_is_no_event_and_is_handed_out(tail: bytes) -> None:
    found, rest = events([(1, b"data: a\n\n" + tail)])
    assert [event.data for event in found] == [b"a"]
    assert rest == tail


LINES = st.sampled_from(["data: %s", "data:%s", ": %s", "id: %s", "event: %s"])
ENDS = st.sampled_from(["\n", "\r\n", "\r"])
TEXTS = st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=("Cs",)), max_size=8)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, bytes]]]:
    """A body of several events, and the same bytes cut anywhere, also within characters and between CR and LF."""
    parts = []
    for _ in range(draw(st.integers(0, 5))):
        end = draw(ENDS)
        parts += [draw(LINES) % draw(TEXTS) + end for _ in range(draw(st.integers(1, 3)))]
        parts.append(end)
    body = "".join(parts).encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=12)))
    edges = [0, *cuts, len(body)]
    pieces = [(place, body[begin:end]) for place, (begin, end) in enumerate(itertools.pairwise(edges))]
    return body, [piece for piece in pieces if piece[1]]


@given(bodies())
def test_cuts_change_no_event(case: tuple[bytes, list[tuple[int, bytes]]]) -> None:
    body, pieces = case
    found, rest = events(pieces)
    assert [event.data for event in found] == [event.data for event in events([(0, body)])[0]]
    assert rest == events([(0, body)])[1]


@given(bodies())
def test_an_event_has_come_when_its_last_byte_has(case: tuple[bytes, list[tuple[int, bytes]]]) -> None:
    _, pieces = case
    found, _ = events(pieces)
    times = [event.at_ns for event in found]
    assert times == sorted(times)
    ends: list[int] = []
    size = 0
    for event in found:
        size += event.size
        ends.append(size)
    begin = 3 if b"".join(data for _, data in pieces).startswith(b"\xef\xbb\xbf") else 0
    for event, end in zip(found, ends, strict=True):
        came = 0
        for at_ns, data in pieces:
            came += len(data)
            if came >= begin + end:
                assert event.at_ns == at_ns
                break


def test_several_events_in_a_read_share_its_time_and_a_split_one_has_the_later() -> None:
    first = b"data: " + json.dumps({"n": 1}).encode() + b"\n\n"
    second = b"data: " + json.dumps({"n": 2}).encode() + b"\n\n"
    found, _ = events([(10, first + second[:4]), (20, second[4:] + first)])
    assert [(event.at_ns, event.size) for event in found] == [(10, len(first)), (20, len(second)), (20, len(first))]
