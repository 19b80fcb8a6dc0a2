"""Errors are one line with a stable id; canonical JSON does not depend on the order of keys."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trispark.canonical import canonical_json, canonical_sha256, generation_id
from trispark.errors import TrisparkError
from trispark_node import canonical as agent
from trispark_node.errors import FIELDS, AgentError, error_line

REPOSITORY = Path(__file__).resolve().parents[3]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
keys = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=20)


def shuffled(value: object) -> object:
    """The same value with every mapping built in the opposite order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(list(value))}
    if isinstance(value, list):
        return [shuffled(item) for item in value]
    return value


def test_error_is_one_line_the_same_of_controller_and_agent() -> None:
    fields = {"where": "a.yml", "expected": "1", "observed": "2", "remedy": "correct it"}
    error = TrisparkError("TS-ENV-RANGE", "X is\nwrong", **fields)
    line = "TS-ENV-RANGE: X is wrong; where: a.yml; expected: 1; observed: 2; do: correct it"
    assert str(error) == str(AgentError("TS-ENV-RANGE", "X is\nwrong", **fields)) == line
    assert error_line({**error.as_dict(), "where": "", "observed": ""}) == (
        "TS-ENV-RANGE: X is wrong; expected: 1; do: correct it"
    )
    assert error.as_dict()["remedy"] == "correct it"


@pytest.mark.parametrize("field", ["what", "where", "expected", "observed", "remedy"])
def test_an_error_without_a_field_cannot_be_made(field: str) -> None:
    fields = {name: "x" for name in FIELDS if name not in ("id", field)}
    with pytest.raises(TypeError, match=field):
        TrisparkError("TS-A-B", **fields)


def test_no_error_is_written_down_with_an_empty_field() -> None:
    empty = [
        f"{path.relative_to(REPOSITORY)}:{call.lineno}"
        for path in sorted(REPOSITORY.glob("src/trispark*/**/*.py"))
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("TrisparkError", "AgentError")
        and any(
            isinstance(value, ast.Constant) and value.value == ""
            for value in (*call.args, *(word.value for word in call.keywords))
        )
    ]
    assert empty == []


@pytest.mark.parametrize("identity", ["TS-A", "ts-a-b", "TS-A-B-", "TS-A-B\n"])
def test_error_id_has_one_form(identity: str) -> None:
    with pytest.raises(ValueError, match="not an error id"):
        TrisparkError(identity, "x", "x", "x", "x", "x")


@given(values)
def test_canonical_json_is_order_independent_and_lossless(value: object) -> None:
    text = canonical_json(value)
    assert canonical_json(shuffled(value)) == text
    assert json.loads(text) == value


@settings(max_examples=30)
@given(st.dictionaries(keys, scalars))
def test_agent_and_controller_hash_alike(value: dict[str, object]) -> None:
    assert agent.canonical_json(value) == canonical_json(value).encode()
    assert agent.generation_id(value) == generation_id(value)
    assert agent.sha256_hex(agent.canonical_json(value)) == canonical_sha256(value)


def test_generation_id_is_pinned() -> None:
    """The id of a stored generation must never change its meaning."""
    assert generation_id({"b": [1, 2.5, "ä"], "a": None}) == "gdd6328f7173f8040"


@pytest.mark.parametrize("value", [math.nan, math.inf, {1: 2}, {"a": {None: 1}}, {"a": object()}, "\ud800"])
def test_what_json_cannot_carry_is_refused(value: object) -> None:
    with pytest.raises(TrisparkError) as caught:
        canonical_sha256(value)
    assert caught.value.id == "TS-CANONICAL-JSON"
