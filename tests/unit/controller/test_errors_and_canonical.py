"""Errors are one line with a stable id; canonical JSON does not depend on the order of keys."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trispark.canonical import canonical_json, canonical_sha256, generation_id
from trispark.errors import TrisparkError
from trispark_node import canonical as agent

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


def test_error_is_one_line_and_leaves_empty_fields_out() -> None:
    error = TrisparkError("TS-ENV-RANGE", "X is\nwrong", where="a.yml", expected="1", observed="2", remedy="correct it")
    assert str(error) == "TS-ENV-RANGE: X is wrong; where: a.yml; expected: 1; observed: 2; do: correct it"
    assert str(TrisparkError("TS-A-B", "no")) == "TS-A-B: no"
    assert error.as_dict()["remedy"] == "correct it"


@pytest.mark.parametrize("identity", ["TS-A", "ts-a-b", "TS-A-B-", "TS-A-B\n"])
def test_error_id_has_one_form(identity: str) -> None:
    with pytest.raises(ValueError, match="not an error id"):
        TrisparkError(identity, "x")


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
