"""Word tokenizer with byte fallback; reversible on any UTF-8 text."""

import codecs
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from .errors import EngineError

PAD, EOS, MASK = 0, 1, 2
SPECIAL = ("<pad>", "<eos>", "<mask>")
FIRST_BYTE = len(SPECIAL)
FIRST_PIECE = FIRST_BYTE + 256

_PIECES = re.compile(
    r"""[ .]?[A-Za-z_]+                           # a word with the space or the dot before it
    | [ ]?[0-9]{1,3}                            # digits in groups of three
    | (?:\n[ ]*)+                               # line ends and the indentation after them
    | [ ]?[^\sA-Za-z0-9_]+?(?=\.?[A-Za-z_])     # punctuation, but a dot before a word stays with the word
    | [ ]?[^\sA-Za-z0-9_]+
    | [ ]+
    | .""",
    re.DOTALL | re.VERBOSE,
)


def split(text: str) -> list[str]:
    """Pieces of the text; their concatenation is the text."""
    return _PIECES.findall(text)


class Tokenizer:
    """Maps text to ids: 3 special ids, 256 byte ids, then the pieces of the checkpoint's vocabulary."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = tuple(pieces)
        self.vocab_size = FIRST_PIECE + len(self.pieces)
        self._ids = {piece: FIRST_PIECE + index for index, piece in enumerate(self.pieces)}
        if len(self._ids) != len(self.pieces):
            raise ValueError("a piece occurs twice")

    @classmethod
    def build(cls, texts: Iterable[str]) -> "Tokenizer":
        """Vocabulary of all pieces in `texts` and the numbers 0..399, most frequent first, then by text."""
        counts = Counter(piece for text in texts for piece in split(text))
        counts.update(str(number) for number in range(400))
        return cls(sorted(counts, key=lambda piece: (-counts[piece], piece)))

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read tokenizer.json of the checkpoint; EngineError TS-ENGINE-CHECKPOINT when it is none."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            pieces = document["pieces"]
            if not isinstance(pieces, list) or not all(isinstance(piece, str) and piece for piece in pieces):
                raise ValueError("pieces")
            return cls(pieces)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineError(
                "TS-ENGINE-CHECKPOINT",
                "tokenizer can not be used",
                where=str(path),
                expected="tokenizer.json of the checkpoint maker",
                observed=type(error).__name__,
                remedy="make or copy the checkpoint again",
            ) from error

    def to_json(self) -> str:
        """Content of tokenizer.json."""
        return (
            json.dumps({"format": "trispark-lab-1", "special": SPECIAL, "pieces": self.pieces}, ensure_ascii=False)
            + "\n"
        )

    def encode(self, text: str) -> list[int]:
        """Ids of the text, without special ids. UnicodeEncodeError for lone surrogates."""
        ids: list[int] = []
        for piece in split(text):
            known = self._ids.get(piece)
            if known is not None:
                ids.append(known)
            else:
                ids.extend(FIRST_BYTE + byte for byte in piece.encode())
        return ids

    def token_bytes(self, token: int) -> bytes:
        """UTF-8 bytes that the id stands for; empty for special ids."""
        if token < FIRST_BYTE:
            return b""
        if token < FIRST_PIECE:
            return bytes([token - FIRST_BYTE])
        return self.pieces[token - FIRST_PIECE].encode()

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids; bytes which are no UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes(token) for token in ids).decode(errors="replace")

    def compressed_ids(self) -> list[int]:
        """For each id its class in the compressed vocabulary: equal after NFKC, NFD, accents, case, white space.

        Pieces of white space alone keep a class each: in code the indentation is content.
        """
        classes: dict[object, int] = {}
        return [classes.setdefault(self._class_key(token), len(classes)) for token in range(self.vocab_size)]

    def _class_key(self, token: int) -> object:
        if token < FIRST_PIECE:
            return token
        piece = self.pieces[token - FIRST_PIECE]
        decomposed = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", piece))
        plain = "".join(char for char in decomposed if not unicodedata.combining(char)).lower()
        return " ".join(plain.split()) or piece


class StreamDecoder:
    """Text of a growing id sequence; holds back bytes of an unfinished character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids: Iterable[int], *, final: bool = False) -> str:
        """Text that became complete by these ids."""
        data = b"".join(self._tokenizer.token_bytes(token) for token in ids)
        return self._decoder.decode(data, final)
