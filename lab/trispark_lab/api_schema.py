"""Request bodies of chat, completions and generate: what is accepted, and one clear message for what is not."""

from dataclasses import dataclass
from typing import Any

from . import tools as markup
from .api_fields import (
    BadRequest,
    Body,
    check_model,
    check_neutral,
    flag,
    integer,
    json_object,
    number,
    positive,
    seed,
    stop_texts,
    valid_text,
)

DEFAULT_MAX_TOKENS = 512
MAX_TOP_LOGPROBS = 20

_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "response_format": ({"type": "text"},),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_tokens": (0,),
    "min_new_tokens": (0,),
    "min_p": (0,),
    "echo": (False,),
    "suffix": ("",),
    "regex": (),
    "json_schema": (),
    "ebnf": (),
}
"""Only the value without effect is accepted (null too)."""


@dataclass(frozen=True)
class GenerationRequest:
    """A checked body of any of the three endpoints. prompt: text or token ids. seed None: one is drawn."""

    prompt: str | tuple[int, ...]
    prompt_field: str
    max_tokens: int | None
    ignore_eos: bool
    stream: bool
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    top_logprobs: int | None = None
    stop: tuple[str, ...] = ()
    include_usage: bool = False
    continuous_usage: bool = False
    tools: tuple[markup.Tool, ...] = ()


def parse_chat(body: object, model: str) -> GenerationRequest:
    """GenerationRequest of a /v1/chat/completions body. BadRequest names the field."""
    document = json_object(body)
    check_model(document, model)
    name = "max_completion_tokens" if document.get("max_completion_tokens") is not None else "max_tokens"
    count = integer(document, "top_logprobs", 0, 0, MAX_TOP_LOGPROBS)
    wanted = flag(document, "logprobs")
    if count and not wanted:
        raise BadRequest("top_logprobs needs logprobs=true", "top_logprobs")
    offered = _tools(document)
    return GenerationRequest(
        prompt=_prompt(document.get("messages"), offered),
        prompt_field="messages",
        max_tokens=positive(document, name),
        top_logprobs=count if wanted else None,
        tools=offered,
        **_stream_fields(document),
        **_common(document, "seed"),
    )


def parse_completion(body: object, model: str) -> GenerationRequest:
    """GenerationRequest of a /v1/completions body."""
    document = json_object(body)
    check_model(document, model)
    return GenerationRequest(
        prompt=_text_or_ids(document.get("prompt"), "prompt"),
        prompt_field="prompt",
        max_tokens=positive(document, "max_tokens"),
        top_logprobs=integer(document, "logprobs", None, 0, MAX_TOP_LOGPROBS),
        **_stream_fields(document),
        **_common(document, "seed"),
    )


def parse_generate(body: object) -> GenerationRequest:
    """GenerationRequest of a /generate body."""
    document = json_object(body)
    options = document.get("sampling_params")
    options = {} if options is None else options
    if not isinstance(options, dict):
        raise BadRequest("sampling_params must be an object", "sampling_params")
    if (document.get("text") is None) == (document.get("input_ids") is None):
        raise BadRequest("send either text or input_ids", "text")
    field = "text" if document.get("text") is not None else "input_ids"
    wanted = flag(document, "return_logprob")
    return GenerationRequest(
        prompt=_text_or_ids(document[field], field),
        prompt_field=field,
        max_tokens=positive(options, "max_new_tokens"),
        top_logprobs=integer(document, "top_logprobs_num", 0, 0, MAX_TOP_LOGPROBS) if wanted else None,
        stream=flag(document, "stream"),
        **_common(options, "sampling_seed"),
    )


def _common(body: Body, seed_name: str) -> dict[str, Any]:
    check_neutral(body, _UNSUPPORTED)
    top_k = integer(body, "top_k", -1, -1, 1 << 20)
    if top_k == 0:
        raise BadRequest("top_k must be -1 (all tokens) or at least 1, not 0", "top_k")
    top_p = number(body, "top_p", 1.0, 0.0, 1.0)
    if top_p == 0:
        raise BadRequest("top_p must be above 0", "top_p")
    return {
        "ignore_eos": flag(body, "ignore_eos"),
        "temperature": number(body, "temperature", 1.0, 0.0, 2.0),
        "top_p": top_p,
        "top_k": max(top_k or 0, 0),
        "seed": seed(body, seed_name),
        "stop": stop_texts(body),
    }


def _stream_fields(body: Body) -> dict[str, Any]:
    stream = flag(body, "stream")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise BadRequest("stream_options must be an object", "stream_options")
    if options and not stream:
        raise BadRequest("stream_options needs stream=true", "stream_options")
    return {
        "stream": stream,
        "include_usage": flag(options or {}, "include_usage"),
        "continuous_usage": flag(options or {}, "continuous_usage_stats"),
    }


def _text_or_ids(value: object, name: str) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return valid_text(value, name)
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return tuple(value)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        return valid_text(value[0], name)
    raise BadRequest(f"{name} must be one text or a list of token ids", name)


def _tools(body: Body) -> tuple[markup.Tool, ...]:
    offered, choice = body.get("tools"), body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise BadRequest("tool_choice must be auto or none", "tool_choice", code="unsupported_value")
    if offered is None or offered == []:
        return ()
    if not isinstance(offered, list):
        raise BadRequest("tools must be a list of functions", "tools")
    found = []
    for index, entry in enumerate(offered):
        function = entry.get("function") if isinstance(entry, dict) and entry.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise BadRequest(f"tools[{index}] must be a function with a name", "tools")
        schema = function.get("parameters")
        properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
        if not isinstance(properties, dict):
            raise BadRequest(f"tools[{index}].function.parameters must be a JSON schema of an object", "tools")
        found.append(markup.Tool(valid_text(function["name"], "tools"), tuple(properties)))
    return () if choice == "none" else tuple(found)


def _prompt(messages: object, offered: tuple[markup.Tool, ...]) -> str:
    """Contents of all messages, joined by line ends. After them: nothing, or with tools the mark of a call, or after
    a tool's answer the words that lead to it."""
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list with at least one message", "messages")
    contents = [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]
    text = "\n".join(contents)
    if text and messages[-1]["role"] == "tool":
        text += f"\n{markup.RESULT_LEAD}"
    elif text and offered:
        text = f"{markup.describe(offered)}\n{text}\n{markup.CALL_MARK}"
    return valid_text(text, "messages")


def _message(message: object, where: str) -> str:
    roles = ("system", "developer", "user", "assistant", "tool")
    if not isinstance(message, dict) or message.get("role") not in roles:
        raise BadRequest(f"{where} must have a role of system, user, assistant or tool", "messages")
    calls = message.get("tool_calls")
    if message["role"] == "assistant" and calls:
        return _calls(calls, where)
    text = _content(message.get("content"), where)
    return markup.written_result(text) if message["role"] == "tool" else text


def _calls(calls: object, where: str) -> str:
    lines = []
    for call in calls if isinstance(calls, list) else [None]:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not all(
            isinstance(function.get(name), str) for name in ("name", "arguments")
        ):
            raise BadRequest(f"{where}.tool_calls must hold functions with name and arguments", "messages")
        lines.append(markup.written_call(function["name"], function["arguments"]))
    return "\n".join(lines)


def _content(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = []
        for part in content:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise BadRequest(f"{where}: only text parts are supported", "messages", code="unsupported_value")
            parts.append(part["text"])
        return "".join(parts)
    raise BadRequest(f"{where} must have a text content", "messages")
