"""Typed fields of a JSON request body, and the error object for what does not fit."""

from typing import Any

from .sampling import MAX_SEED

Body = dict[str, Any]


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


def json_object(body: object) -> Body:
    """The body, which must be an object."""
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def check_model(body: Body, model: str) -> None:
    """The body must name the served model."""
    if body.get("model") != model:
        raise BadRequest(
            f"model {body.get('model')!r} is not served; this engine serves {model!r}", "model", code="model_not_found"
        )


def check_neutral(body: Body, neutral: dict[str, tuple[object, ...]]) -> None:
    """Fields without implementation: only null and the values without effect are accepted."""
    for name, accepted in neutral.items():
        value = body.get(name)
        if value is not None and not any(
            value == item and isinstance(value, bool) == isinstance(item, bool) for item in accepted
        ):
            raise BadRequest(
                f"{name}={value!r} is not supported in this version of the engine", name, code="unsupported_value"
            )


def flag(body: Body, name: str) -> bool:
    """true or false; absent and null are false."""
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise BadRequest(f"{name} must be true or false, not {value!r}", name)
    return value


def number(body: Body, name: str, default: float, low: float, high: float) -> float:
    """A number in low..high."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"{name} must be a number, not {value!r}", name)
    if not low <= value <= high:
        raise BadRequest(f"{name} must be from {low:g} to {high:g}, not {value!r}", name)
    return float(value)


def integer(body: Body, name: str, default: int | None, low: int, high: int) -> int | None:
    """An integer in low..high."""
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int or not low <= value <= high:
        raise BadRequest(f"{name} must be an integer from {low} to {high}, not {value!r}", name)
    return value


def positive(body: Body, name: str) -> int | None:
    """A positive integer or nothing."""
    value = body.get(name)
    if value is not None and (type(value) is not int or value < 1):
        raise BadRequest(f"{name} must be a positive integer, not {value!r}", name)
    return value


def seed(body: Body, name: str) -> int | None:
    """A seed."""
    return integer(body, name, None, 0, MAX_SEED)


def stop_texts(body: Body) -> tuple[str, ...]:
    """Up to four texts at which the answer ends."""
    value = body.get("stop")
    texts = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts) or len(texts) > 4:
        raise BadRequest("stop must be a text or a list of up to four texts", "stop")
    return tuple(text for text in texts if text)


def valid_text(text: str, name: str) -> str:
    """Text that is not empty and can be encoded."""
    if not text:
        raise BadRequest("the messages are empty" if name == "messages" else f"{name} is empty", name)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"{name} holds half of a surrogate pair, which is no text", name) from error
    return text
