"""Health by canary: one short completion through the head, which needs every rank; /health may say 200 without them.

It must disturb nothing that is measured: it is not asked while something else is at work, and a busy engine is judged
by the tokens that it makes, where it counts them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from trispark_node.clock import Clock
from trispark_node.http_request import HttpClient
from trispark_node.plain_json import parse_json

TIMEOUT_S = 2.0
MAX_TOKENS = 4
PROGRESS_S = 0.6
"""How long a busy engine may take for a token more before it is asked for one."""
_POLL_S = 0.2
_READ_S = 0.5
_SAMPLE = re.compile(r"^sglang:(\w+)(?:\{[^}]*\})? ([0-9.]+(?:e[+-]?[0-9]+)?)$", re.MULTILINE)
_RUNNING = ("num_running_reqs", "num_queue_reqs")
_TOKENS = "generation_tokens_total"


def not_asked(why: str) -> dict[str, Any]:
    """The answer when nothing is known of the ranks together."""
    return {"ok": None, "seconds": None, "tokens": None, "running": None, "why": why}


def at_work(lock: Mapping[str, Any] | None) -> str | None:
    """The command that holds the fleet lock, by the answer of `lock-show`; None when nobody does, or the lease has
    ended."""
    holder = (lock or {}).get("holder")
    if not isinstance(holder, Mapping) or holder.get("alive") is False:
        return None
    return str(holder.get("reason") or "a command")


def ask(http: HttpClient, clock: Clock, gates: Mapping[str, Any]) -> dict[str, Any]:
    """{"ok": true, false or null (not known), "seconds", "tokens", "running", "why"}.

    `gates`: of the resolved configuration; `running` requests as the engine counts them, null when it does not.
    """
    try:
        canary = gates["canary"]
        url, model, prompt = str(canary["url"]), canary["model"], canary["prompt"]
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": min(int(canary.get("max_tokens", MAX_TOKENS)), MAX_TOKENS),
            "stream": False,
            **canary.get("body", {}),
        }
    except (KeyError, TypeError, ValueError):
        return not_asked("the generation says no canary")
    began = clock.monotonic()
    first = _counted(http, url)
    if first.get("running"):
        made = _progress(http, clock, url, first.get("tokens"))
        if made is not None:
            return {
                "ok": True,
                "seconds": round(clock.monotonic() - began, 3),
                "tokens": made,
                "running": first["running"],
                "why": "busy: not asked, its requests go on",
            }
    return _completion(http, clock, url, body, first.get("running"))


def _completion(
    http: HttpClient, clock: Clock, url: str, body: Mapping[str, Any], running: int | None
) -> dict[str, Any]:
    began = clock.monotonic()
    left = TIMEOUT_S - (PROGRESS_S if running else 0)
    answer: dict[str, Any] = {"ok": False, "seconds": None, "tokens": None, "running": running, "why": ""}
    try:
        response = http.call("POST", url, json.dumps(body).encode("utf-8"), left)
    except OSError as error:
        late = isinstance(error, TimeoutError) or isinstance(getattr(error, "reason", None), TimeoutError)
        if late and running:
            # All slots may be taken, or a rank is gone and its requests hang: both look like this from outside.
            told = f"busy or stuck: {running} requests run, no token of them was seen and none came in {left:g} s"
            return {**answer, "ok": None, "why": told}
        return {**answer, "why": f"no answer within {left:g} s" if late else f"no answer: {_said(error)}"}
    answer["seconds"] = round(clock.monotonic() - began, 3)
    if response.status != 200:
        return {**answer, "why": f"it answered with {response.status}"}
    try:
        said = parse_json(response.body, any_text=True)
        tokens = int(said["usage"]["completion_tokens"])
    except (ValueError, TypeError, KeyError):
        return {**answer, "why": "its answer is no completion"}
    if tokens < 1:
        return {**answer, "tokens": tokens, "why": "it answered without a token"}
    return {**answer, "ok": True, "tokens": tokens}


def _said(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error) or type(error).__name__


def _counted(http: HttpClient, url: str) -> dict[str, int]:
    """{"running", "tokens"} as far as the engine's metrics say them."""
    parts = urlsplit(url)
    try:
        response = http.call("GET", f"{parts.scheme}://{parts.netloc}/metrics", None, _READ_S)
    except OSError:
        return {}
    if response.status != 200:
        return {}
    sums: dict[str, float] = {}
    for name, value in _SAMPLE.findall(response.body.decode("utf-8", "replace")):
        sums[name] = sums.get(name, 0.0) + float(value)
    found = {}
    if any(name in sums for name in _RUNNING):
        found["running"] = int(sum(sums.get(name, 0.0) for name in _RUNNING))
    if _TOKENS in sums:
        found["tokens"] = int(sums[_TOKENS])
    return found


def _progress(http: HttpClient, clock: Clock, url: str, before: int | None) -> int | None:
    """Tokens made meanwhile; None when none is seen in time, or they are not counted."""
    if before is None:
        return None
    deadline = clock.monotonic() + PROGRESS_S
    while clock.monotonic() < deadline:
        clock.sleep(_POLL_S)
        now = _counted(http, url).get("tokens")
        if now is not None and now > before:
            return now - before
    return None
