"""Answers of an engine's API as the judges read them; what is missing or odd in one is its `problem`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Raw = Mapping[str, Any]


@dataclass(frozen=True)
class Token:
    """One token of an answer: its text, its logarithm in nats, and the best ones at its place."""

    text: str
    logprob: float
    best: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Answer:
    """`problem`: why this is no answer, None when it is one. `tokens`: None where no logarithms came."""

    problem: str | None
    text: str = ""
    finish: str | None = None
    tokens: tuple[Token, ...] | None = None
    calls: tuple[tuple[str, Any], ...] = ()
    """(name, arguments) of tool calls; arguments are None where they are no JSON object."""


@dataclass(frozen=True)
class Steps:
    """Counts of one request: committed tokens (with the one of the prompt), steps that verified drafts."""

    problem: str | None
    text: str = ""
    tokens: int = 0
    verify: int = 0


def chat(raw: Raw) -> Answer:
    """Of {"status", "body"} or {"error"} of a chat completion."""
    body, problem = _body(raw)
    if problem is not None:
        return Answer(problem)
    try:
        choice = body["choices"][0]
        message = choice["message"]
        text = message.get("content") or ""
        calls = tuple(_call(each) for each in message.get("tool_calls") or ())
        tokens = _tokens(choice.get("logprobs"))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError, RecursionError):
        return Answer("no chat completion")
    if not isinstance(text, str):
        return Answer("no chat completion")
    return Answer(None, text, choice.get("finish_reason"), tokens, calls)


def generated(raw: Raw) -> Steps:
    """Of an answer of the native endpoint, which counts its verify steps."""
    body, problem = _body(raw)
    if problem is not None:
        return Steps(problem)
    try:
        meta = body["meta_info"]
        found = Steps(None, str(body["text"]), int(meta["completion_tokens"]), int(meta["spec_verify_ct"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return Steps("no counts of verify steps")
    return found if found.tokens > 1 and found.verify > 0 else Steps("no verify step", found.text)


def _body(raw: Raw) -> tuple[Any, str | None]:
    if raw.get("error"):
        return None, str(raw["error"])[:200]
    if raw.get("status") != 200:
        return None, f"HTTP {raw.get('status')}"
    body = raw.get("body")
    if isinstance(body, str):
        # NaN and Infinity are no JSON, but engines write them; the judge of logarithms says so.
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            return None, "no JSON"
    return body, None


def _tokens(logprobs: Any) -> tuple[Token, ...] | None:
    if not logprobs or logprobs.get("content") is None:
        return None
    return tuple(
        Token(
            str(entry["token"]),
            _number(entry["logprob"]),
            tuple((str(other["token"]), _number(other["logprob"])) for other in entry.get("top_logprobs") or ()),
        )
        for entry in logprobs["content"]
    )


def _number(value: Any) -> float:
    """As a float; what is none is not a number, which no judge takes for one."""
    return float("nan") if value is None or isinstance(value, bool) else float(value)


def _call(entry: Any) -> tuple[str, Any]:
    function = entry["function"]
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, TypeError, OverflowError, RecursionError):
        arguments = None
    return str(function["name"]), arguments if isinstance(arguments, dict) else None
