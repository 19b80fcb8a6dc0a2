"""Tools of a chat request: how they are told to the model, and how its answer becomes a call.

The model has its own short markup, as real ones do: `VALUE|PARAMETER|TOOL` after a line that begins with `@`.
"""

import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

CALL_MARK = "@"
RESULT_LEAD = "The result is"
_CALL = re.compile(r"([^|\n]+)\|([A-Za-z_]+)\|([A-Za-z_]+)")


@dataclass(frozen=True)
class Tool:
    """A function: its name and its parameters in order."""

    name: str
    parameters: tuple[str, ...]


def describe(tools: Sequence[Tool]) -> str:
    """The line that names the tools to the model."""
    return "Tools: " + ", ".join(f"{tool.name}({', '.join(tool.parameters)})" for tool in tools)


def written_call(name: str, arguments: str) -> str:
    """A call of an earlier turn in the model's markup; arguments are JSON text."""
    try:
        document = json.loads(arguments)
    except ValueError:
        document = None
    pairs = document.items() if isinstance(document, dict) else ()
    return CALL_MARK + ", ".join(f"{value}|{key}|{name}" for key, value in pairs)


def written_result(content: str) -> str:
    """A tool's answer as the model reads it; it ends a sentence."""
    text = " ".join(content.split())
    return f"{RESULT_LEAD} {text}" + ("" if text.endswith((".", "!", "?")) else ".")


def find_call(text: str, tools: Sequence[Tool]) -> dict[str, object] | None:
    """The tool_calls entry of an answer; None when it is no call of a tool that was offered."""
    match = _CALL.fullmatch(text.strip())
    if match is None:
        return None
    value, parameter, name = match.groups()
    if not any(tool.name == name and parameter in tool.parameters for tool in tools):
        return None
    function = {"name": name, "arguments": json.dumps({parameter: value}, ensure_ascii=False)}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}
