"""Where code of a model is executed: an isolated one-shot container of the load client's image on a node that is not
the head. Never on the controller, which holds keys, and never where a network can be seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from trispark.errors import TrisparkError

NAME: Final = "trispark-sandbox"
SECONDS_A_PIECE: Final = 5.0
START_S: Final = 30.0


def sandbox_request(image: str, pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """For the agent's verb `oneshot`. `pieces`: as `evaluate.code_to_run` gives them."""
    return {
        "name": NAME,
        "role": "bench",
        "isolated": True,
        "image": image,
        "command": ["python3", "-I", "-c", _text("sandbox_program.py"), "/work/input.json", "/work/output.json"],
        "input": {
            "program": child_program(),
            "pieces": [dict(piece) for piece in pieces],
            "seconds": SECONDS_A_PIECE,
        },
        "deadline_s": START_S + 2 * SECONDS_A_PIECE * max(1, len(pieces)),
    }


def child_program() -> str:
    """The program of the process that has the code."""
    return _text("sandbox_child.py")


def _text(name: str) -> str:
    return files("trispark.quality").joinpath(name).read_text(encoding="utf-8")


def executed(answer: Mapping[str, Any] | None) -> dict[str, tuple[str, ...]]:
    """{task: what is wrong} of the agent's answer; nothing where nothing was run.

    Raises TS-QUALITY-SANDBOX where the sandbox refused or ended without a result.
    """
    if not answer:
        return {}
    output = answer.get("output")
    results = output.get("results") if isinstance(output, Mapping) else None
    refused = output.get("refused") if isinstance(output, Mapping) else f"exit {answer.get('exit_code')}, no output"
    if refused or not isinstance(results, Mapping) or not all(isinstance(each, list) for each in results.values()):
        raise TrisparkError(
            "TS-QUALITY-SANDBOX",
            "code of the model was not executed",
            where=NAME,
            expected="a container without network that runs it",
            observed=str(refused or "an output without results")[:200],
            remedy="see the node's Docker Engine; code is never executed without isolation",
        )
    return {str(name): tuple(map(str, wrong)) for name, wrong in results.items()}
