"""Answers beside those of a reference: IDENTICAL, EQUIVALENT within a declared tolerance, or DIVERGENT."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from trispark.quality.answers import Answer, Token
from trispark.quality.model import Equivalence

LAST_DIGIT = 1e-9
"""Nats. JSON carries all digits of a float, so equal computations give equal numbers."""


class Likeness(IntEnum):
    """How an answer compares with its reference, from the best."""

    IDENTICAL = 0
    """The same tokens with the same logarithms."""
    EQUIVALENT = 1
    """Logarithms of the common tokens differ by no more than is declared, and texts part only at a near tie."""
    DIVERGENT = 2


@dataclass(frozen=True)
class Compared:
    """`mean`: mean difference of the common tokens' logarithms in nats; `parts`: the place of the first other token."""

    likeness: Likeness
    reason: str
    mean: float = 0.0
    parts: int | None = None


def compare(reference: Answer, answer: Answer, allowed: Equivalence) -> Compared:
    """One answer with logarithms beside its reference. What cannot be compared is DIVERGENT."""
    problem = reference.problem or answer.problem
    if problem is not None:
        return Compared(Likeness.DIVERGENT, problem)
    if not reference.tokens or not answer.tokens:
        return Compared(Likeness.DIVERGENT, "no logarithms")
    pairs = list(zip(reference.tokens, answer.tokens, strict=False))
    parts = next((at for at, (a, b) in enumerate(pairs) if a.text != b.text), None)
    if parts is None and len(reference.tokens) != len(answer.tokens):
        return Compared(Likeness.DIVERGENT, f"{len(answer.tokens)} tokens, the reference has {len(reference.tokens)}")
    common = pairs if parts is None else pairs[:parts]
    differences = [abs(a.logprob - b.logprob) for a, b in common]
    mean = statistics.fmean(differences) if differences else 0.0
    if parts is None and all(each <= LAST_DIGIT for each in differences):
        return Compared(Likeness.IDENTICAL, f"{len(common)} tokens and logarithms", mean)
    if not mean <= allowed.mean_nats:
        return Compared(Likeness.DIVERGENT, f"{mean:.4f} nats a token, allowed {allowed.mean_nats:g}", mean, parts)
    if parts is not None:
        gap = max(_gap(*pairs[parts]), _gap(*pairs[parts][::-1]))
        if not gap <= allowed.tie_nats:
            reason = f"another token {parts}, {gap:.4f} nats apart, a tie is {allowed.tie_nats:g}"
            return Compared(Likeness.DIVERGENT, reason, mean, parts)
        return Compared(Likeness.EQUIVALENT, f"parts at token {parts} in a tie of {gap:.4f} nats", mean, parts)
    return Compared(Likeness.EQUIVALENT, f"{mean:.4f} nats a token", mean)


def _gap(own: Token, other: Token) -> float:
    """How far below the token that was taken the other one was, by the same side; infinite where it was not seen."""
    seen = [value for text, value in own.best if text == other.text]
    return own.logprob - seen[0] if seen else float("inf")


def worst(found: Mapping[str, Compared]) -> tuple[Likeness, str]:
    """Of all answers: the worst likeness, and which answer has it. Nothing compared is DIVERGENT."""
    if not found:
        return Likeness.DIVERGENT, "nothing was compared"
    name = max(found, key=lambda each: found[each].likeness)
    return found[name].likeness, f"{name}: {found[name].reason}"


def packed(answers: Mapping[str, Answer]) -> dict[str, Any]:
    """JSON form of a reference."""
    return {
        name: {
            "text": answer.text,
            "finish": answer.finish,
            "tokens": [[t.text, t.logprob, [list(best) for best in t.best]] for t in answer.tokens or ()],
        }
        for name, answer in answers.items()
    }


def unpacked(value: Mapping[str, Any]) -> dict[str, Answer]:
    """From its JSON form. Raises KeyError, TypeError and ValueError for another one."""

    def token(entry: Sequence[Any]) -> Token:
        text, logprob, best = entry
        return Token(str(text), float(logprob), tuple((str(other), float(number)) for other, number in best))

    return {
        str(name): Answer(None, str(part["text"]), part["finish"], tuple(token(each) for each in part["tokens"]))
        for name, part in value.items()
    }
