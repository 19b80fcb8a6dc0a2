"""The OpenAI-style request body: what is accepted, and one clear message for what is not."""

from dataclasses import dataclass
from typing import Any

DEFAULT_MAX_TOKENS = 512


class BadRequest(Exception):
    """A request that the client must change; becomes HTTP 400 (or `status`) with an error object."""

    def __init__(
        self, message: str, param: str | None = None, *, code: str = "invalid_request", status: int = 400
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status

    def body(self) -> dict[str, object]:
        """OpenAI error object."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class ChatRequest:
    """A checked /v1/chat/completions body."""

    text: str
    max_tokens: int | None
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool


_NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "stop": ([], ""),
    "response_format": ({"type": "text"},),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_tokens": (0,),
}
"""Fields of later versions: only the value without effect is accepted (null too)."""


def parse_chat(body: object, model: str) -> ChatRequest:
    """ChatRequest of a JSON body. BadRequest names the field."""
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    if body.get("model") != model:
        raise BadRequest(
            f"model {body.get('model')!r} is not served; this engine serves {model!r}", "model", code="model_not_found"
        )
    if _number(body, "temperature", 1.0) != 0:
        raise BadRequest(
            "only greedy decoding is in this version of the engine: send temperature 0 (sampling is not supported yet)",
            "temperature",
            code="unsupported_value",
        )
    for name, accepted in _NEUTRAL.items():
        value = body.get(name)
        if value is not None and not any(
            value == item and isinstance(value, bool) == isinstance(item, bool) for item in accepted
        ):
            raise BadRequest(
                f"{name}={value!r} is not supported in this version of the engine", name, code="unsupported_value"
            )
    name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    max_tokens = body.get(name)
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        raise BadRequest(f"{name} must be a positive integer, not {max_tokens!r}", name)
    stream = _flag(body, "stream")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise BadRequest("stream_options must be an object", "stream_options")
    if options and not stream:
        raise BadRequest("stream_options needs stream=true", "stream_options")
    return ChatRequest(
        text=_prompt(body.get("messages")),
        max_tokens=max_tokens,
        ignore_eos=_flag(body, "ignore_eos"),
        stream=stream,
        include_usage=_flag(options or {}, "include_usage"),
        continuous_usage=_flag(options or {}, "continuous_usage_stats"),
    )


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise BadRequest(f"{name} must be true or false, not {value!r}", name)
    return value


def _number(body: dict[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"{name} must be a number, not {value!r}", name)
    return float(value)


def _prompt(messages: object) -> str:
    """Contents of all messages, joined by line ends; no template ids follow the last one."""
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list with at least one message", "messages")
    contents = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict) or message.get("role") not in ("system", "developer", "user", "assistant"):
            raise BadRequest(f"{where} must have a role of system, user or assistant", "messages")
        contents.append(_content(message.get("content"), where))
    text = "\n".join(contents)
    if not text:
        raise BadRequest("the messages are empty", "messages")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest("the messages hold half of a surrogate pair, which is no text", "messages") from error
    return text


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
