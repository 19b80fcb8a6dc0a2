"""The warm-up batch: as many requests at once as the engine has slots, each answered in Latin prose or the boot is bad.

A batch shows what one request does not: with the wrong allocator the field's engine answered three requests at a time
with symbols and CJK characters while each alone was right (field I25). There it was a warning; here the gate fails.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final

_ASCII: Final = frozenset(string.ascii_letters + string.digits + string.punctuation)
_OTHER_SCRIPTS: Final = ("CJK ", "HANGUL ", "HIRAGANA ", "KATAKANA ", "BOPOMOFO ", "IDEOGRAPHIC ", "FULLWIDTH ")
"""Beginnings of the Unicode names of what no Latin prose holds."""


def batch_requests(resolved: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Requests that the agent's verb `request-batch` sends at once from the head: one for each slot of a resolved
    configuration. None for one that was stored before there was a batch."""
    gates = resolved["gates"]
    batch, canary = gates.get("batch"), gates["canary"]
    if batch is None:
        return []
    return [
        {
            "url": canary["url"],
            "method": "POST",
            "body": {
                "model": canary["model"],
                "messages": [{"role": "user", "content": batch["prompts"][number % len(batch["prompts"])]}],
                "temperature": 0,
                "max_tokens": batch["max_tokens"],
                "stream": False,
                **batch["body"],
            },
            "timeout_s": batch["timeout_s"],
        }
        for number in range(int(resolved["settings"]["MAX_RUNNING_REQUESTS"]))
    ]


def ascii_share(text: str) -> float:
    """Share of ASCII letters, digits and punctuation among the characters that are no white space; 0 without any."""
    seen = [character for character in text if not character.isspace()]
    return sum(character in _ASCII for character in seen) / len(seen) if seen else 0.0


def foreign_scripts(text: str) -> list[str]:
    """CJK, Hangul and kana characters of a text, each once, in order."""
    return [c for c in dict.fromkeys(text) if unicodedata.name(c, "").startswith(_OTHER_SCRIPTS)]


def text_problem(text: str, minimum_share: float) -> str | None:
    """What is wrong with one answer; None when it is Latin prose."""
    if not text.strip():
        return "no text"
    foreign = foreign_scripts(text)
    if foreign:
        return "other scripts: " + ", ".join(f"U+{ord(character):04X}" for character in foreign[:5])
    share = ascii_share(text)
    if share < minimum_share:
        return f"{share:.0%} ASCII letters, digits and punctuation"
    return None


def batch_problems(resolved: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is wrong with the answers {"status", "body"} or {"error"} to `batch_requests`, in its order."""
    wanted = len(batch_requests(resolved))
    problems = [f"{len(answers)} answers to {wanted} requests"] if len(answers) != wanted else []
    minimum = float(resolved["gates"]["batch"]["minimum_ascii_share"])
    judged = [(number, _answer_problem(answer, minimum)) for number, answer in enumerate(answers)]
    return problems + [f"request {number}: {problem}" for number, problem in judged if problem]


def _answer_problem(answer: Mapping[str, Any], minimum: float) -> str | None:
    if answer.get("error"):
        return str(answer["error"])[:200]
    if answer.get("status") != 200:
        return f"HTTP {answer.get('status')}"
    try:
        text = answer["body"]["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        text = None
    return text_problem(text, minimum) if isinstance(text, str) else "no chat completion"
