"""Answers of a sound engine to the questions of the quality gates."""

from __future__ import annotations

import json
from typing import Any

from trispark.quality.model import EngineQuality
from trispark.quality.questions import NATIVE, Question, needle_code

PROSE = "The keeper of the lamp climbed the stairs each night and looked out over the dark sea for ships."
CODE = {"double": "def double(n):\n    return 2 * n", "largest": "largest = max", "reverse": "def reverse(t): ..."}
Raw = dict[str, Any]


def completion(text: str | None, *, logprobs: bool = False, calls: Any = None) -> Raw:
    message: Raw = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    choice: Raw = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    if logprobs:
        choice["logprobs"] = {
            "content": [
                {"token": word, "logprob": -0.5, "top_logprobs": [{"token": word, "logprob": -0.5}]}
                for word in (text or "").split(" ")
            ]
        }
    return {"status": 200, "body": {"choices": [choice]}}


def native(tokens: int, verify: int) -> Raw:
    return {
        "status": 200,
        "body": {"text": PROSE, "meta_info": {"completion_tokens": tokens, "spec_verify_ct": verify}},
    }


def healthy(quality: EngineQuality, question: Question) -> Raw:
    """What a sound engine answers."""
    if question.path == NATIVE:
        return native(33, 16)
    name = question.name
    if name.startswith("needle."):
        _, sentences, depth = name.split(".")
        (needle,) = quality.needles
        (share,) = [each for each in needle.depths if round(100 * each) == int(depth)]
        return completion(f"It is {needle_code(needle, int(sentences), share)}.")
    if name.startswith("task."):
        task = quality.task(name.removeprefix("task."))
        if task.kind == "tool":
            function = {"name": task.tool, "arguments": json.dumps(task.arguments)}
            return completion(None, calls=[{"id": "c1", "type": "function", "function": function}])
        text = {"text": task.expect, "json": '{"a": 1, "b": 2, "c": 3}'}.get(task.kind)
        return completion(f"```python\n{CODE[task.id]}\n```" if text is None else text)
    return completion(PROSE, logprobs="logprobs" in question.body)
