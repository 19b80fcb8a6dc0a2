"""Files damaged by chance: a seed, some steps that change it, and what a step may put in."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hypothesis import strategies as st

_POWERS = (2**31, 2**32 - 1, 2**48, 2**48 + 1, 2**63, 2**64, 10**39, 10**40)
NUMBERS = tuple(str(number).encode() for number in (-1, 0, 1, 7, 8, 255, 256, 264, 4096, *_POWERS))
TOKENS = (
    *(b'"dtype"', b'"shape"', b'"data_offsets"', b'"__metadata__"', b'"F8_E4M3"', b'"U8"', b'"I64"', b'"X"'),
    *(b"{", b"}", b"[", b"]", b",", b":", b"[]", b"{}", b'""', b"null", b"true", b"NaN", b"Infinity", b"1e999", b"-0"),
    *(b'"\\ud800"', b'"\\u0000"', b"\xff", b"\xef\xbb\xbf", b"\0", b" ", b"[" * 300, b"{" * 300, b'"a":' * 200),
)
_NUMBER = re.compile(rb"\d+")
_PAIR = re.compile(rb"\[(\d{1,18}), (\d{1,18})\]")


@st.composite
def mutated(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """A seed after one to six steps."""
    content = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 6))):
        content = draw(st.sampled_from(_STEPS))(draw, content)
    return content


def _place(draw: st.DrawFn, content: bytes) -> int:
    return draw(st.integers(0, len(content)))


def _flip(draw: st.DrawFn, content: bytes) -> bytes:
    if not content:
        return content
    at = draw(st.integers(0, len(content) - 1))
    return content[:at] + bytes([content[at] ^ 1 << draw(st.integers(0, 7))]) + content[at + 1 :]


def _word(draw: st.DrawFn, content: bytes) -> bytes:
    """Eight bytes at a multiple of eight, as fields of a header are."""
    at = 8 * draw(st.integers(0, 8))
    value = draw(st.sampled_from((0, 1, 2, 48, 263, 264, 265, 4096, 2**31, 2**63)) | st.integers(0, 2**64 - 1))
    return content[:at] + value.to_bytes(8, "little") + content[at + 8 :]


def _number(draw: st.DrawFn, content: bytes) -> bytes:
    """Another number where one is written."""
    places = [found.span() for found in _NUMBER.finditer(content)]
    if not places:
        return content
    start, end = draw(st.sampled_from(places))
    near = int(content[start:end][:20])
    return content[:start] + draw(st.sampled_from((*NUMBERS, b"%d" % (near + 1), b"%d" % (near - 1)))) + content[end:]


def _shift(draw: st.DrawFn, content: bytes) -> bytes:
    """Both numbers of a pair by as much: a range that lies elsewhere."""
    pairs = list(_PAIR.finditer(content))
    if not pairs:
        return content
    pair, by = draw(st.sampled_from(pairs)), draw(st.integers(-20, 20))
    low, high = (max(0, int(number) + by) for number in pair.groups())
    return content[: pair.start()] + b"[%d, %d]" % (low, high) + content[pair.end() :]


def _insert(draw: st.DrawFn, content: bytes) -> bytes:
    at = _place(draw, content)
    return content[:at] + draw(st.sampled_from(TOKENS) | st.binary(max_size=9)) + content[at:]


def _remove(draw: st.DrawFn, content: bytes) -> bytes:
    start, length = _place(draw, content), draw(st.integers(1, 40))
    return content[:start] + content[start + length :]


def _repeat(draw: st.DrawFn, content: bytes) -> bytes:
    start, length = _place(draw, content), draw(st.integers(1, 120))
    return content[: start + length] + content[start:]


def _cut(draw: st.DrawFn, content: bytes) -> bytes:
    return content[: _place(draw, content)]


_STEPS = (_flip, _word, _number, _shift, _insert, _remove, _repeat, _cut)
