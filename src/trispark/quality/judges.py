"""What answers must be: each judge is a pure function of answers and gives one result. What was not seen has failed."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jsonschema import Draft202012Validator

from trispark.gate_result import GateResult
from trispark.quality.answers import Answer, Steps
from trispark.quality.model import ACCEPT_FLOOR, Task
from trispark.warmup import text_problem

LOOP_LENGTHS: Final = range(1, 33)
LOOP_TIMES: Final = 4
"""A text that ends with so many equal pieces of up to 32 words is a loop."""
LOOP_WORDS: Final = 12
"""Fewer repeated words may be a refrain."""
_FENCE: Final = re.compile(r"```[A-Za-z0-9]*\n(.*?)(?:\n```|\Z)", re.DOTALL)

_REMEDY: Final = "compare image, shards and settings of all ranks with the last good generation"


def result(check_id: str, problems: Sequence[str], expected: str, observed: str, remedy: str = _REMEDY) -> GateResult:
    """Ok without problems; else the first few of them are what was observed."""
    ok = not problems
    shown = observed if ok else "; ".join(problems[:3]) + (f" and {len(problems) - 3} more" if problems[3:] else "")
    return GateResult(f"quality.{check_id}", None, ok, expected, shown, "" if ok else remedy)


def finite_logprobs(answers: Mapping[str, Answer]) -> GateResult:
    """Every token of every answer has a finite logarithm of at most zero, and so have the best at its place."""
    problems = []
    count = 0
    for name, answer in answers.items():
        if answer.problem is not None or not answer.tokens:
            problems.append(f"{name}: {answer.problem or 'no logarithms'}")
            continue
        for place, token in enumerate(answer.tokens):
            values = [token.logprob, *(value for _, value in token.best)]
            count += len(values)
            # A rounding error above zero is none of the model.
            if bad := [value for value in values if not math.isfinite(value) or value > 1e-3]:
                problems.append(f"{name}: token {place} has {bad[0]}")
                break
    expected = "finite logarithms of at most 0 for every token"
    return result("logprobs", problems or ([] if count else ["no answer"]), expected, f"{count} are")


def repeated(workload: str, answers: Sequence[Answer]) -> GateResult:
    """Greedy answers to one prompt are the same text."""
    problems = [answer.problem for answer in answers if answer.problem is not None]
    texts = {answer.text for answer in answers}
    if len(answers) < 2:
        problems.append(f"{len(answers)} answers")
    elif not problems and len(texts) > 1:
        problems.append(f"{len(texts)} texts of {len(answers)}, first different at {_parts(sorted(texts))}")
    expected = f"one text for one prompt of {workload}"
    return result(f"repeat.{workload}", problems, expected, f"{len(answers)} times the same")


def _parts(texts: Sequence[str]) -> str:
    pairs = zip(texts[0], texts[1], strict=False)
    return f"character {next((at for at, (a, b) in enumerate(pairs) if a != b), min(map(len, texts[:2])))}"


def acceptance(workload: str, counts: Sequence[Steps], bands: Sequence[tuple[float, float]]) -> GateResult:
    """Committed tokens a step over all requests are above the hard floor and in every band of the configuration.

    The token that the prompt gives is of no step.
    """
    problems = [each.problem for each in counts if each.problem is not None]
    steps, tokens = sum(each.verify for each in counts), sum(each.tokens - 1 for each in counts)
    expected = f"at least {ACCEPT_FLOOR} tokens a step" + "".join(f", {low:g} to {high:g}" for low, high in bands)
    mean = tokens / steps if steps else 0.0
    shown = f"{mean:.2f}, {tokens} tokens in {steps} steps"
    if not problems and not accepted(mean, bands):
        problems.append(shown)
    remedy = "compare draft weights and speculative settings with the baseline's"
    return result(f"acceptance.{workload}", problems or ([] if counts else ["no answer"]), expected, shown, remedy)


def accepted(mean: float, bands: Sequence[tuple[float, float]]) -> bool:
    """Whether a mean accept length is one of a working draft. A value that is no number is not."""
    return mean >= ACCEPT_FLOOR and all(low <= mean <= high for low, high in bands)


def sane(name: str, answers: Sequence[Answer], minimum_share: float) -> GateResult:
    """Every text is Latin script and no loop."""
    problems = [problem for answer in answers if (problem := _insane(answer, minimum_share)) is not None]
    expected = "Latin prose without loops in each answer"
    return result(f"sane.{name}", problems or ([] if answers else ["no answer"]), expected, f"{len(answers)} are")


def _insane(answer: Answer, minimum_share: float) -> str | None:
    if answer.problem is not None:
        return answer.problem
    return text_problem(answer.text, minimum_share) or loop_problem(answer.text)


def loop_problem(text: str) -> str | None:
    """Why a text is a loop at its end: one piece of words again and again. None when it is not."""
    words = text.split()
    for length in LOOP_LENGTHS:
        piece = words[len(words) - length :]
        times = 0
        while words[max(0, len(words) - length * (times + 1)) : len(words) - length * times] == piece and piece:
            times += 1
        if times >= LOOP_TIMES and times * length >= LOOP_WORDS:
            return f"{times} times {' '.join(piece)[:40]!r} at its end"
    return None


def mixed(alone: Mapping[str, Answer], beside: Mapping[str, Answer], *, invariant: bool, share: float) -> GateResult:
    """Greedy requests beside sampled ones: the same text as alone where the engine promises that, else a sane one."""
    problems = []
    for name, answer in beside.items():
        if (problem := _insane(answer, share)) is not None:
            problems.append(f"{name}: {problem}")
        elif invariant and name in alone and alone[name].text != answer.text:
            problems.append(f"{name}: another text than alone, at {_parts([alone[name].text, answer.text])}")
    expected = "the text of the request alone" if invariant else "sane text beside other requests"
    return result("mixed", problems or ([] if beside else ["no answer"]), expected, f"{len(beside)} are")


def code_of(text: str) -> str:
    """The Python of an answer: its first fenced block, or all of it."""
    found = _FENCE.search(text)
    return found[1] if found else text


def task(asked: Task, answer: Answer, executed: Sequence[str] | None = None) -> GateResult:
    """`executed`: what the sandbox found wrong with the code of a code task, None where it did not run: never ok."""
    problem = answer.problem
    if problem is None:
        match asked.kind:
            case "text":
                problem = None if answer.text.strip() == asked.expect else repr(answer.text[:80])
            case "json":
                problem = _json_problem(answer.text, asked.json_schema or {})
            case "tool":
                wanted = [(asked.tool, asked.arguments)]
                seen = [(name, arguments) for name, arguments in answer.calls]
                problem = None if seen == wanted else f"{seen or repr(answer.text[:80])}"
            case _:
                problem = "not executed" if executed is None else "; ".join(executed) or None
    shown = {"text": asked.expect, "json": "the schema", "tool": f"{asked.tool} {asked.arguments}"}
    expected = shown.get(asked.kind) or f"code in which {len(asked.checks)} checks are true"
    return result(f"task.{asked.id}", [] if problem is None else [problem], str(expected), "it is")


def _json_problem(text: str, schema: Mapping[str, Any]) -> str | None:
    try:
        value = json.loads(code_of(text))
    except (ValueError, RecursionError):
        return f"no JSON: {text[:60]!r}"
    error = next(iter(Draft202012Validator(dict(schema)).iter_errors(value)), None)
    return None if error is None else error.message[:120]


def needle(name: str, code: str, answer: Answer) -> GateResult:
    """The word that was hidden is in the answer."""
    found = answer.problem is None and re.search(rf"\b{re.escape(code)}\b", answer.text) is not None
    problem = answer.problem or f"{answer.text[:80]!r}"
    return result(f"needle.{name}", [] if found else [problem], code, "found")


def distinct(answers: Sequence[Answer]) -> int:
    """How many different texts there are; said, not judged, where a workload need not repeat."""
    return len(Counter(answer.text for answer in answers if answer.problem is None))
