"""The warm-up batch: as many requests at once as the engine has slots, each answered in Latin prose or the boot is bad.

A batch shows what one request does not: with the wrong allocator the field's engine answered three requests at a time
with symbols and CJK characters while each alone was right (field I25). There it was a warning; here the check fails.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trispark.allowlist import Value
from trispark.catalog import BatchCheck
from trispark.gates import GateResult

CHECK_ID: Final = "warmup.batch"
_ASCII: Final = frozenset(string.ascii_letters + string.digits + string.punctuation)
_OTHER_SCRIPTS: Final = ("CJK ", "HANGUL ", "HIRAGANA ", "KATAKANA ", "BOPOMOFO ", "IDEOGRAPHIC ", "FULLWIDTH ")
"""Beginnings of the Unicode names of what no Latin prose holds."""


def batch_requests(check: BatchCheck, settings: Mapping[str, Value], url: str, model: str) -> list[dict[str, Any]]:
    """Requests for the agent's verb `request` on the head, to be sent at once: MAX_RUNNING_REQUESTS of them."""
    slots = settings["MAX_RUNNING_REQUESTS"]
    assert isinstance(slots, int), "the allowlist gives it as a whole number"
    return [
        {
            "url": url,
            "method": "POST",
            "body": {
                "model": model,
                "messages": [{"role": "user", "content": check.prompts[number % len(check.prompts)]}],
                "max_tokens": check.max_tokens,
                "stream": False,
                **check.body,
            },
            "timeout_s": check.timeout_s,
        }
        for number in range(slots)
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


def judge_batch(check: BatchCheck, answers: Sequence[Mapping[str, Any] | None]) -> GateResult:
    """One result for the fleet. `answers`: the agent's answers {"status", "body"}; None where there was none."""
    judged = [(number, _of(check, answer)) for number, answer in enumerate(answers)]
    problems = [f"request {number}: {problem}" for number, problem in judged if problem]
    expected = f"Latin prose, at least {check.minimum_ascii_share:.0%} ASCII letters, digits and punctuation, in each"
    ok = bool(answers) and not problems
    observed = "; ".join(problems) or (f"{len(answers)} answers in Latin prose" if answers else "no answer")
    remedy = "" if ok else "compare PYTORCH_CUDA_ALLOC_CONF and the image of all ranks; read the kept logs"
    return GateResult(CHECK_ID, None, ok, expected, observed, remedy)


def _of(check: BatchCheck, answer: Mapping[str, Any] | None) -> str | None:
    if answer is None:
        return "no answer"
    if answer.get("status") != 200:
        return f"HTTP {answer.get('status')}"
    try:
        text = answer["body"]["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        text = None
    return text_problem(text, check.minimum_ascii_share) if isinstance(text, str) else "no chat completion"
