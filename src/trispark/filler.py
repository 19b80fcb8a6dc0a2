"""Text of our own that fills a prompt, sentence by sentence; the same seed gives the same text on every machine."""

from __future__ import annotations

import hashlib
from typing import Final

_OPENINGS: Final = (
    "In the morning",
    "After the rain",
    "Toward evening",
    "On market day",
    "Before the ferry left",
    "While the kettle sang",
    "When the lamps were lit",
    "At the end of the quay",
)
_PEOPLE: Final = (
    "the lighthouse keeper",
    "a retired teacher",
    "the baker's apprentice",
    "an old surveyor",
    "the harbour master",
    "a girl from the mill",
    "the librarian",
    "a travelling tinker",
)
_DEEDS: Final = (
    "counted the boats",
    "mended a torn net",
    "copied a faded chart",
    "sorted the letters",
    "painted the garden gate",
    "wound the tower clock",
    "measured the tide",
    "carried a crate of pears",
)
_PLACES: Final = (
    "by the stone bridge",
    "behind the school",
    "under the chestnut trees",
    "in the back room of the inn",
    "along the canal",
    "on the road to the quarry",
    "near the old pump",
    "beside the weaver's house",
)
_ENDS: Final = (
    "and said nothing about it.",
    "until the bell rang twice.",
    "as the wind turned north.",
    "for the third time that week.",
    "and wrote the hour into a book.",
    "while a dog slept in the sun.",
    "before anyone else was awake.",
    "and went home by another way.",
)
_PARTS: Final = (_OPENINGS, _PEOPLE, _DEEDS, _PLACES, _ENDS)


def filler(sentences: int, seed: int) -> str:
    """So many sentences of about sixteen words each, with single spaces between them."""
    lines = []
    for number in range(sentences):
        digest = hashlib.sha256(f"{seed}:{number}".encode()).digest()
        opening, who, deed, place, end = (words[digest[part] % len(words)] for part, words in enumerate(_PARTS))
        lines.append(f"{opening}, {who} {deed} {place} {end}")
    return " ".join(lines)
