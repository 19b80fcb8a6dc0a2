"""One streamed chat request, timed; tokens are what the server's `usage` says, never the number of events."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp


@dataclass(frozen=True)
class Sample:
    """One request as measured, without any rate. Times in seconds from the moment it was sent; `total_s` is the last
    token's. A sample with `error` has no figures and is kept, never dropped.
    """

    tag: str
    workload: str
    index: int
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    ttft_s: float | None = None
    total_s: float | None = None
    text_sha: str | None = None
    events: int = 0
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def chat_body(model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
    """A greedy request of exactly `max_tokens` tokens, so that every repetition does the same work."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"thinking": False},
    }


def delta_text(event: dict[str, Any]) -> str:
    """The text that one stream event carries, answer and reasoning alike."""
    text = ""
    for choice in event.get("choices", []):
        delta = choice.get("delta", {})
        text += delta.get("reasoning_content") or ""
        text += delta.get("content") or ""
    return text


async def measure(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], *, tag: str, workload: str, index: int
) -> Sample:
    """Send one request and time its stream. Errors become a sample with `error`, but silence ends the measurement.

    Raises TimeoutError when nothing comes within the session's time: whatever follows would be waited for as long.
    """
    sent = time.perf_counter()
    first = last = None
    usage: dict[str, Any] | None = None
    digest = hashlib.sha256()
    events = 0
    try:
        async with session.post(url, json=body) as response:
            if response.status != 200:
                detail = (await response.text())[:200].replace("\n", " ")
                return Sample(tag, workload, index, error=f"HTTP {response.status}: {detail}")
            async for raw in response.content:
                line = raw.strip()
                if not line.startswith(b"data:"):
                    continue
                payload = line[5:].strip()
                if payload == b"[DONE]":
                    break
                event = json.loads(payload)
                if "error" in event:
                    return Sample(tag, workload, index, events=events, error=f"stream error: {event['error']}")
                usage = event.get("usage") or usage
                text = delta_text(event)
                if text:
                    events += 1
                    last = time.perf_counter()
                    first = first or last
                    digest.update(text.encode())
    except TimeoutError:
        raise
    except (aiohttp.ClientError, ValueError) as error:
        return Sample(tag, workload, index, events=events, error=f"{type(error).__name__}: {error}")
    if usage is None:
        return Sample(tag, workload, index, events=events, error="the stream ended without usage")
    if first is None or last is None:
        return Sample(tag, workload, index, events=events, error="the stream carried no text")
    return Sample(
        tag=tag,
        workload=workload,
        index=index,
        completion_tokens=int(usage["completion_tokens"]),
        prompt_tokens=int(usage["prompt_tokens"]),
        ttft_s=first - sent,
        total_s=last - sent,
        text_sha=digest.hexdigest()[:16],
        events=events,
    )
