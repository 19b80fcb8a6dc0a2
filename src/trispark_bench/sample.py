"""What one request gave, without any rate: tokens are what the server's `usage` says, never the number of events."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from trispark_bench.sse import Event

DONE = b"[DONE]"


class StreamError(ValueError):
    """The stream is not what was asked for; the text says how."""


@dataclass(frozen=True)
class Sample:
    """One request as measured. Seconds count from the moment it was sent; `total_s` is the last token's.

    Events, all of the stream's in order: `at_ns` nanoseconds since the request was sent, `sizes` bytes, `tokens` the
    completion tokens so far (None unless every event that brings text says so), `kinds` a letter each: c answer,
    r reasoning, t tool call, m both answer and reasoning, - no text.
    `stamps`: kernel where all times are the kernel's, else read. `id`: the server's, of its first event.
    `first_tokens`: completion tokens of the first event with text; None where
    unknown. `sent_ns` counts from the begin of the measurement. A sample with `error` has no figures and is kept, never
    dropped.
    """

    tag: str
    workload: str
    index: int
    id: str | None = None
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    ttft_s: float | None = None
    total_s: float | None = None
    text_sha: str | None = None
    reasoning_chars: int = 0
    content_chars: int = 0
    finish_reason: str | None = None
    events: int = 0
    first_tokens: int | None = None
    verify_steps: int | None = None
    correct_drafts: int | None = None
    connect_s: float | None = None
    sent_ns: int = 0
    ended_ns: int | None = None
    at_ns: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    tokens: tuple[int, ...] | None = None
    kinds: str = ""
    stamps: str | None = None
    status: int | None = None
    error: str | None = None

    def failed(self, error: str) -> Sample:
        """The same request without figures. What came of its events stays."""
        shown = error.encode(errors="backslashreplace").decode()  # JSON can hold what UTF-8 cannot
        return replace(
            self, completion_tokens=None, ttft_s=None, total_s=None, first_tokens=None, tokens=None, error=shown
        )

    def as_json(self) -> dict[str, Any]:
        """One row."""
        return {name: getattr(self, name) for name in _FIELDS}


_FIELDS = tuple(each.name for each in fields(Sample))


def read_stream(begun: Sample, stream: Sequence[Event], rest: bytes, sent_ns: int, model: str) -> Sample:
    """`begun` with what its events say. Raises nothing: a stream that is not what was asked for is a failed sample.

    rest     what followed the last event
    sent_ns  the clock when the request was sent
    model    the name that must answer
    """
    reader = _Reader(model)
    error = None
    seen = []
    for event in stream:
        seen.append(event)
        try:
            if not reader.take(event):
                break
        except StreamError as problem:
            error = str(problem)
            break
        except (AttributeError, TypeError) as problem:
            error = f"an event has another shape: {problem}: {event.data[:80]!r}"
            break
    sample = replace(
        begun,
        events=reader.texts,
        at_ns=tuple(event.at_ns - sent_ns for event in seen),
        sizes=tuple(event.size for event in seen),
        kinds=reader.kinds,
        reasoning_chars=reader.reasoning_chars,
        content_chars=reader.content_chars,
        finish_reason=reader.finish_reason,
        id=reader.id,
    )
    if error is None:
        error = reader.problem(rest)
    return sample.failed(error) if error is not None else reader.figures(sample, sent_ns)


class _Reader:
    """State over the events of one stream."""

    def __init__(self, model: str) -> None:
        self.kinds = ""
        self.texts = 0
        self.reasoning_chars = self.content_chars = 0
        self.finish_reason: str | None = None
        self.id: str | None = None
        self._model = model
        self._digest = hashlib.sha256()
        self._usage: dict[str, Any] | None = None
        self._details: dict[str, Any] = {}
        self._counts: list[int | None] = []
        self._first_ns: int | None = None
        self._last_ns = 0
        self._last_tokens_ns: int | None = None
        self._done = False

    def take(self, event: Event) -> bool:
        """Whether more may follow. Raises StreamError."""
        self.kinds += "-"
        self._counts.append(self._counts[-1] if self._counts else None)
        if event.data == DONE:
            self._done = True
            return False
        document = _document(event.data)
        if "error" in document:
            raise StreamError(f"stream error: {str(document['error'])[:200]}")
        if document.get("model", self._model) != self._model:
            raise StreamError(f"the model {str(document['model'])[:80]!r} answered, asked for was {self._model!r}")
        if self.id is None and isinstance(document.get("id"), str):
            self.id = document["id"].encode(errors="backslashreplace").decode()
        self._take_usage(document.get("usage"), event.at_ns)
        details = (document.get("sglext") or {}).get("spec_tokens_details")
        if isinstance(details, dict):
            self._details = details
        self._take_text(document, event.at_ns)
        return True

    def _take_usage(self, usage: Any, at_ns: int) -> None:
        if usage is None:
            return
        count = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if type(count) is not int or count < 0 or type(usage.get("prompt_tokens")) is not int:
            raise StreamError(f"usage is {str(usage)[:120]}")
        before = (self._usage or {}).get("completion_tokens", 0)
        if count < before:
            raise StreamError(f"usage fell from {before} to {count} tokens")
        if count > before:
            self._last_tokens_ns = at_ns
        self._usage = usage
        self._counts[-1] = count

    def _take_text(self, document: dict[str, Any], at_ns: int) -> None:
        kinds = set()
        for choice in document.get("choices") or []:
            delta = choice.get("delta") or {}
            reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
            content = delta.get("content") or ""
            self.reasoning_chars += len(reasoning)
            self.content_chars += len(content)
            calls = json.dumps(delta["tool_calls"]) if delta.get("tool_calls") else ""
            self._digest.update(f"{reasoning}{content}{calls}".encode(errors="surrogatepass"))
            kinds |= {kind for kind, text in (("r", reasoning), ("c", content), ("t", calls)) if text}
            if choice.get("finish_reason"):
                self.finish_reason = ascii(choice["finish_reason"]).strip("'")
        if kinds:
            self.kinds = self.kinds[:-1] + (kinds.pop() if len(kinds) == 1 else "m")
            self.texts += 1
            self._first_ns = self._first_ns if self._first_ns is not None else at_ns
            self._last_ns = at_ns

    def problem(self, rest: bytes) -> str | None:
        """What the stream lacks at its end."""
        if rest:
            return f"the stream ended within an event: {rest[:60]!r}"
        if not self._done:
            return f"the stream ended without [DONE] after {len(self.kinds)} events"
        if self._usage is None:
            return "the stream ended without usage"
        if self._first_ns is None:
            return "the stream carried no text"
        if self._usage["completion_tokens"] < 1:
            return f"usage counts {self._usage['completion_tokens']} tokens for a stream with text"
        return None

    def figures(self, sample: Sample, sent_ns: int) -> Sample:
        """With usage, times and the counts of each event."""
        assert self._usage is not None
        assert self._first_ns is not None
        first = next(place for place, kind in enumerate(self.kinds) if kind != "-")
        counted = [self._counts[place] for place, kind in enumerate(self.kinds) if kind != "-"]
        # Usage in the last event alone says nothing about the others.
        continuous = all(count is not None for count in counted)
        last_ns = self._last_ns
        if continuous and self._last_tokens_ns is not None:
            last_ns = max(last_ns, self._last_tokens_ns)
        return replace(
            sample,
            completion_tokens=self._usage["completion_tokens"],
            prompt_tokens=self._usage["prompt_tokens"],
            cached_tokens=_detail(self._usage, "prompt_tokens_details", "cached_tokens"),
            reasoning_tokens=_detail(self._usage, "completion_tokens_details", "reasoning_tokens"),
            ttft_s=(self._first_ns - sent_ns) / 1e9,
            total_s=(last_ns - sent_ns) / 1e9,
            text_sha=self._digest.hexdigest()[:16],
            first_tokens=self._counts[first] if continuous else None,
            tokens=tuple(count or 0 for count in self._counts) if continuous else None,
            verify_steps=_whole(self._details.get("spec_verify_ct")),
            correct_drafts=_whole(self._details.get("spec_num_correct_drafts")),
        )


def _document(data: bytes) -> dict[str, Any]:
    try:
        document = _DECODER.decode(data.decode())
    except UnicodeDecodeError as error:
        raise StreamError(f"an event is not UTF-8: {error}") from None
    except (ValueError, RecursionError) as error:
        raise StreamError(f"an event is not JSON: {type(error).__name__}: {error}") from None
    if not isinstance(document, dict):
        raise StreamError(f"an event is no object: {data[:60]!r}")
    return document


def _refuse(name: str) -> float:
    raise StreamError(f"the engine's answer holds {name}")


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise StreamError(f"the engine's answer holds {text[:40]}")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def _detail(usage: dict[str, Any], group: str, name: str) -> int | None:
    return _whole((usage.get(group) or {}).get(name))


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None
