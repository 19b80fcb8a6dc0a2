from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark_lab.errors import EngineError
from trispark_lab.tokenizer import FIRST_PIECE, StreamDecoder, Tokenizer, split

SMALL = Tokenizer(["the", " the", " The", "19", "\n", "\n    ", "é", " caf\u0065\u0301", " café"])
TEXTS = st.text(st.characters(codec="utf-8"), max_size=60) | st.text(" \n.ab_19{é", max_size=40)


@given(TEXTS)
def test_encode_is_reversible(text: str) -> None:
    assert "".join(split(text)) == text
    assert SMALL.decode(SMALL.encode(text)) == text


@given(TEXTS, st.integers(1, 5))
def test_streaming_gives_the_same_text(text: str, size: int) -> None:
    ids = SMALL.encode(text)
    decoder = StreamDecoder(SMALL)
    parts = [decoder.feed(ids[at : at + size]) for at in range(0, len(ids), size)]
    assert "".join(parts) + decoder.feed([], final=True) == text


def test_a_character_is_never_cut() -> None:
    decoder = StreamDecoder(SMALL)
    assert [decoder.feed([token]) for token in SMALL.encode("ß")] == ["", "ß"]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("19+23=", ["19", "+", "23", "="]),
        ("self.entries[key]", ["self", ".entries", "[", "key", "]"]),
        ("a\n\n    b", ["a", "\n\n    ", "b"]),
        ("1234", ["123", "4"]),
    ],
)
def test_pieces(text: str, pieces: list[str]) -> None:
    assert split(text) == pieces


def test_compressed_classes_join_case_accents_and_spaces() -> None:
    classes = SMALL.compressed_ids()
    by_piece = {piece: classes[FIRST_PIECE + index] for index, piece in enumerate(SMALL.pieces)}
    assert by_piece["the"] == by_piece[" the"] == by_piece[" The"]
    assert by_piece[" caf\u0065\u0301"] == by_piece[" café"]
    assert by_piece["\n"] != by_piece["\n    "]
    assert len(set(classes)) == max(classes) + 1
    assert len(set(classes[:FIRST_PIECE])) == FIRST_PIECE


def test_build_orders_by_frequency_then_text() -> None:
    pieces = Tokenizer.build(["x b b a", "c"]).pieces
    assert pieces[0] == " b"
    assert {"x", " a", "c", "399"} < set(pieces)


@pytest.mark.parametrize("content", ["", "[]", '{"pieces": ["a", "a"]}', '{"pieces": [1]}', '{"pieces": [""]}', "\xff"])
def test_a_bad_file_is_one_clear_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(EngineError, match="TS-ENGINE-CHECKPOINT"):
        Tokenizer.load(path)
