"""Values are checked by their declared type, strings strictly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trispark.allowlist import Allowlist, AllowlistFile, Variable, format_value
from trispark.catalog import Catalog
from trispark.errors import TrisparkError


def variable(kind: str, **fields: Any) -> Variable:
    data = {
        "name": "X",
        "type": kind,
        "env": True,
        "scope": "common",
        "source": "baseline",
        "engines": {"lab": "implemented"},
        "loggable": True,
        "description": "d",
        "origin": "o",
        **fields,
    }
    return Variable.model_validate(data, strict=False)


@pytest.mark.parametrize(
    ("kind", "fields", "text", "value"),
    [
        ("int", {}, "-3", -3),
        ("int", {"min": 0, "max": 5}, "5", 5),
        ("float", {}, "0.50", 0.5),
        ("float", {}, "-0", 0.0),
        ("flag01", {}, "1", 1),
        ("str", {}, " a=b #'\"$ ", " a=b #'\"$ "),
        ("enum", {"choices": ("IB", "Socket")}, "IB", "IB"),
        ("path", {}, "/a/b c", "/a/b c"),
    ],
)
def test_parse(kind: str, fields: dict[str, Any], text: str, value: object) -> None:
    parsed = variable(kind, **fields).parse(text, "-e")
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("kind", "fields", "text", "error_id"),
    [
        ("int", {}, " 1", "TS-ENV-TYPE"),
        ("int", {}, "1_000", "TS-ENV-TYPE"),
        ("int", {}, "٣", "TS-ENV-TYPE"),
        ("int", {}, "01", "TS-ENV-TYPE"),
        ("int", {}, "", "TS-ENV-TYPE"),
        ("int", {"max": 5}, "6", "TS-ENV-RANGE"),
        ("float", {}, "1e3", "TS-ENV-TYPE"),
        ("float", {}, "nan", "TS-ENV-TYPE"),
        ("float", {"min": 0.5}, "0.4", "TS-ENV-RANGE"),
        ("flag01", {}, "yes", "TS-ENV-TYPE"),
        ("flag01", {}, "True", "TS-ENV-TYPE"),
        ("flag01", {}, "2", "TS-ENV-RANGE"),
        ("str", {}, "", "TS-ENV-VALUE"),
        ("str", {}, "a\nb", "TS-ENV-VALUE"),
        ("str", {}, "a\rb", "TS-ENV-VALUE"),
        ("str", {}, "a\0b", "TS-ENV-VALUE"),
        ("str", {}, "a\x85b", "TS-ENV-VALUE"),
        ("str", {}, "\ud800", "TS-ENV-VALUE"),
        ("str", {}, "{rendezvous_port}", "TS-ENV-VALUE"),
        ("str", {}, "x{generation}", "TS-ENV-VALUE"),
        ("str", {"pattern": "a+"}, "aab", "TS-ENV-RANGE"),
        ("enum", {"choices": ("IB",)}, "ib", "TS-ENV-RANGE"),
        ("path", {}, "a/b", "TS-ENV-RANGE"),
        ("path", {}, "/a/../b", "TS-ENV-RANGE"),
        ("path", {}, "/a/", "TS-ENV-RANGE"),
    ],
)
def test_parse_refuses(kind: str, fields: dict[str, Any], text: str, error_id: str) -> None:
    with pytest.raises(TrisparkError) as caught:
        variable(kind, **fields).parse(text, "-e")
    assert caught.value.id == error_id


@pytest.mark.parametrize("value", [True, 1.0, "1", None, [1]])
def test_yaml_values_are_not_converted(value: object) -> None:
    with pytest.raises(TrisparkError) as caught:
        variable("int").check(value, "baseline.yml")
    assert caught.value.id == "TS-ENV-TYPE"


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (0.95, "0.95"), (1.0, "1"), (3, "3"), ("a b", "a b")])
def test_format(value: int | float | str, text: str) -> None:
    assert format_value(value) == text


@given(st.floats(min_value=0.001, max_value=1e6))
def test_formatted_floats_come_back(value: float) -> None:
    assert float(format_value(value)) == value


def test_a_value_that_is_not_loggable_is_not_shown() -> None:
    with pytest.raises(TrisparkError) as caught:
        variable("int", loggable=False).parse("hunter2", "-e")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"env": False},
        {"name": "x y"},
        {"source": "rank.rank"},
        {"scope": "rank"},
        {"pattern": "a"},
        {"choices": ("a",)},
        {"engines": {}},
        {"inert_value": 1},
    ],
)
def test_inconsistent_variable_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        variable("int", **fields)


def test_only_loggable_listed_values_are_recorded(catalog: Catalog) -> None:
    env = {"DSV41_WO_A_W8": "1", "WANDB_API_KEY": "secret", "PATH": "/bin"}
    assert catalog.allowlist.split_env(env) == ({"DSV41_WO_A_W8": "1"}, ["PATH", "WANDB_API_KEY"])


def test_values_of_unlisted_flags_are_withheld() -> None:
    tp = variable("int", flag="--tp")
    key = variable("str", name="API_KEY", flag="--api-key", loggable=False)
    allowlist = Allowlist(AllowlistFile(schema_version=1, variables=(tp, key)))
    command = ["python3", "-m", "e", "--tp", "3", "--api-key", "s1", "--tp", "4", "--token", "--s2", "--key=s3", "--x"]
    shown = allowlist.withhold_command(command)
    assert shown == [
        *["python3", "-m", "e", "--tp", "3", "--api-key", "(withheld)", "--tp", "4"],
        *["--token", "(withheld)", "--key=(withheld)", "--x"],
    ]
