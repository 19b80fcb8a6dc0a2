"""Values are checked by their declared type, strings strictly."""

from __future__ import annotations

from pathlib import Path
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


def secret(kind: str, **fields: Any) -> Variable:
    return variable(kind, loggable=False, source="never", engines={"lab": "refused"}, **fields)


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
        secret("int").parse("hunter2", "-e")
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


@pytest.mark.parametrize("source", ["baseline", "site.extra_container_env", "site.api_port"])
def test_a_secret_that_would_be_delivered_is_refused(source: str) -> None:
    """It would stand in plans, in results of modules and in the events of a run; no redaction comes before those."""
    with pytest.raises(ValidationError, match="a secret is delivered to no engine"):
        variable("str", name="SESSION_SALT", loggable=False, source=source)
    assert variable("str", name="SESSION_SALT", source=source).env


def test_only_loggable_listed_values_are_recorded(catalog: Catalog) -> None:
    env = {"DSV41_WO_A_W8": "1", "WANDB_API_KEY": "secret", "PATH": "/bin"}
    assert catalog.allowlist.split_env(env) == ({"DSV41_WO_A_W8": "1"}, ["PATH", "WANDB_API_KEY"])


def test_values_of_unlisted_flags_are_withheld() -> None:
    tp = variable("int", flag="--tp")
    key = secret("str", name="API_KEY", flag="--api-key")
    allowlist = Allowlist(AllowlistFile(schema_version=1, variables=(tp, key)))
    command = ["python3", "-m", "e", "--tp", "3", "--api-key", "s1", "--tp", "4", "--token", "--s2", "--key=s3", "--x"]
    shown = allowlist.withhold_command(command)
    assert shown == [
        *["python3", "-m", "e", "--tp", "3", "--api-key", "(withheld)", "--tp", "4"],
        *["--token", "(withheld)", "--key=(withheld)", "--x"],
    ]


@pytest.mark.parametrize(
    ("kind", "fields", "text", "right"),
    [
        ("flag01", {}, "yes", "X=1"),
        ("flag01", {}, "True", "X=1"),
        ("flag01", {}, "False", "X=0"),
        ("flag01", {}, " 1", "X=1"),
        ("flag01", {}, "'0'", "X=0"),
        ("flag01", {}, '"on"', "X=1"),
        ("int", {"max": 9}, " 5 ", "X=5"),
        ("int", {"max": 9}, "'5'", "X=5"),
        ("float", {}, ".95", "X=0.95"),
        ("float", {}, "1e-1", "X=0.1"),
        ("enum", {"choices": ("IB", "Socket")}, "ib", "X=IB"),
        ("str", {"pattern": "0|conf:.*"}, "off", "X=0"),
        ("str", {"pattern": "[A-Z]+"}, " IB ", "X=IB"),
        ("path", {}, "'/a/b'", "X=/a/b"),
    ],
)
def test_a_refusal_shows_the_right_spelling(kind: str, fields: dict[str, Any], text: str, right: str) -> None:
    with pytest.raises(TrisparkError) as caught:
        variable(kind, **fields).parse(text, "-e")
    assert caught.value.remedy == f"write {right} in -e"


@pytest.mark.parametrize(
    ("kind", "fields", "value", "right"),
    [
        ("flag01", {}, True, "X=1"),
        ("flag01", {}, "1", "X=1"),
        ("str", {"pattern": "[0-5]"}, 0, "X='0'"),
        ("str", {"pattern": "[0-5]"}, False, "X='0'"),
        ("int", {}, "7", "X=7"),
    ],
)
def test_a_yaml_value_too(kind: str, fields: dict[str, Any], value: object, right: str) -> None:
    with pytest.raises(TrisparkError) as caught:
        variable(kind, **fields).check(value, "baseline.yml")
    assert caught.value.remedy == f"write {right} in baseline.yml"


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [("flag01", {}, ""), ("flag01", {}, "2"), ("int", {"max": 5}, "6"), ("int", {}, "9" * 5000), ("str", {}, "")],
)
def test_no_spelling_is_guessed_where_none_is_right(kind: str, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(TrisparkError) as caught:
        variable(kind, **fields).parse(text, "-e")
    assert caught.value.remedy == "correct X in -e"


@given(kind=st.sampled_from(["int", "float", "flag01", "str", "path"]), text=st.text(max_size=12))
def test_what_a_refusal_proposes_is_accepted(kind: str, text: str) -> None:
    declared = variable(kind)
    right = declared.right_spelling(text)
    if right is not None:
        declared.parse(right, "-e")


def test_nothing_is_proposed_of_a_secret() -> None:
    with pytest.raises(TrisparkError) as caught:
        secret("str", pattern="[a-z]+").parse(" hunter ", "-e")
    assert "hunter" not in str(caught.value)


@given(st.floats(min_value=1e-9, max_value=1e9))
def test_floats_are_written_without_an_exponent(value: float) -> None:
    text = format_value(value)
    assert float(text) == value
    assert "e" not in text


@pytest.mark.parametrize(
    ("fields", "value", "arguments"),
    [
        ({"flag": "--x"}, 3, ["--x", "3"]),
        ({"flag": "--x", "omit_value": 0}, 3, ["--x", "3"]),
        ({"flag": "--x", "omit_value": 0}, 0, []),
        ({}, 3, []),
    ],
)
def test_arguments(fields: dict[str, Any], value: int, arguments: list[str]) -> None:
    assert variable("int", **fields).arguments(value) == arguments


def test_a_switch_has_no_value() -> None:
    switch = variable("flag01", env=False, flag="--x", switch=True, omit_value=0)
    assert (switch.arguments(1), switch.arguments(0)) == (["--x"], [])


@pytest.mark.parametrize(
    "fields",
    [
        {"switch": True, "omit_value": 0},
        {"switch": True, "omit_value": 0, "flag": "--x"},
        {"switch": True, "flag": "--x", "env": False},
        {"source": "never"},
        {"min": 2, "max": 1, "type": "int"},
    ],
)
def test_inconsistent_delivery_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        variable(fields.pop("type", "flag01"), **fields)


@pytest.mark.parametrize(
    ("ranks", "reached"),
    [("all", [True, True, True]), ("head", [True, False, False]), ("workers", [False, True, True])],
)
def test_a_variable_reaches_the_ranks_of_its_role(ranks: str, reached: list[bool]) -> None:
    assert [variable("int", ranks=ranks).reaches("lab", rank) for rank in range(3)] == reached
    assert not variable("int", ranks=ranks).reaches("sglang", 0)


DATA = Path(__file__).parent / "data"


def names_of(file: str) -> list[str]:
    lines = (DATA / file).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_every_name_of_the_field_is_known(catalog: Catalog) -> None:
    assert [name for name in names_of("field-names.txt") if name not in catalog.allowlist] == []
    excluded = {exclusion.name for exclusion in catalog.exclusions.values() if exclusion.any}
    assert [name for name in names_of("ruled-out-names.txt") if name not in excluded] == []


def test_secrets_are_paths_and_never_values(catalog: Catalog) -> None:
    for name in ("API_KEY", "API_KEY_FILE"):
        known = catalog.allowlist.require(name, "test")
        assert (known.source, known.env, known.flag) == ("never", False, None)
    assert not catalog.allowlist.require("API_KEY", "test").loggable
