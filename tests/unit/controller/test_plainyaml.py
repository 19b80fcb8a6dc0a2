"""Files that a person would not write: refused by name, quickly, without eating the machine."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path
from typing import Annotated

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, model_validator

from trispark import plainyaml
from trispark.errors import TrisparkError
from trispark.plainyaml import Strict, check_model, read_yaml

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 30)
)
REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("text", "error_id", "named"),
    [
        ("a: &a [*a]\n", "TS-YAML-ALIAS", "line 1"),
        ("a: &a {b: *a}\n", "TS-YAML-ALIAS", "*a"),
        ("a: &a\n  b:\n    c: *a\n", "TS-YAML-ALIAS", "line 3"),
        ("&a {x: *a}\n", "TS-YAML-ALIAS", "*a"),
        ("a: &x 1\nb: *x\n", "TS-YAML-ALIAS", "line 2"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", "TS-YAML-ALIAS", "line 3"),
        ("a: &x b\n*x : 1\n", "TS-YAML-ALIAS", "line 2"),
        (BOMB, "TS-YAML-ALIAS", "line 2"),
        ("a: *nowhere\n", "TS-YAML-ALIAS", "*nowhere"),
        ("a: " + "[" * 100_000, "TS-YAML-SYNTAX", "too deeply"),
        ("a: " + "{a: " * 100_000, "TS-YAML-SYNTAX", "too deeply"),
        ("a: " + "[" * 60 + "]" * 60, "TS-YAML-SYNTAX", "too deeply"),
        ("- " * 60 + "x", "TS-YAML-SYNTAX", "too deeply"),
        ("- " * 5_000, "TS-YAML-SYNTAX", "too deeply"),
        ("a: !!int ''\n", "TS-YAML-SYNTAX", "tag"),
        ("a: !!float ''\n", "TS-YAML-SYNTAX", "tag"),
        ("a: !!bool x\n", "TS-YAML-SYNTAX", "tag"),
        ("a: !!timestamp x\n", "TS-YAML-SYNTAX", "tag"),
        ("a: !!python/object:os.system x\n", "TS-YAML-SYNTAX", "line 1"),
        ("a: " + "9" * 10_000, "TS-YAML-SYNTAX", "digits"),
        ("? [a]\n: 1\n", "TS-YAML-SYNTAX", "scalar"),
        ("a: 1\na: 2\n", "TS-YAML-SYNTAX", "twice"),
        ("a: 1\n---\nb: 2\n", "TS-YAML-SYNTAX", "line 2"),
        ("a: \0\n", "TS-YAML-SYNTAX", "special characters"),
        ("[]\n", "TS-YAML-SHAPE", "list"),
        ("1: x\n", "TS-YAML-SHAPE", "mapping of names"),
        ("text\n", "TS-YAML-SHAPE", "str"),
    ],
)
def test_what_is_no_plain_yaml_is_refused(tmp_path: Path, text: str, error_id: str, named: str) -> None:
    path = tmp_path / "x.yml"
    path.write_text(text, encoding="utf-8")
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(TrisparkError) as caught:
            read_yaml(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.id == error_id
    assert named in str(caught.value)
    assert "x.yml" in caught.value.where
    assert len(str(caught.value)) < 600
    assert peak < 64 * 2**20
    assert time.process_time() - started < 2


def test_nesting_as_people_write_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.yml"
    path.write_text("a: " + "[" * 40 + "]" * 40 + "\nb:\n" + "".join(" " * n + "a:\n" for n in range(1, 40)), "utf-8")
    assert set(read_yaml(path)) == {"a", "b"}


def test_an_anchor_alone_and_text_that_looks_like_an_alias_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.yml"
    path.write_text("a: &x 1\nb: '*x'\nc: 2 * x\n", encoding="utf-8")
    assert read_yaml(path) == {"a": 1, "b": "*x", "c": "2 * x"}


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a: \xff\n"])
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.yml"
    path.write_bytes(content)
    with pytest.raises(TrisparkError) as caught:
        read_yaml(path)
    assert caught.value.id == "TS-YAML-READ"


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(TrisparkError) as caught:
        read_yaml(tmp_path)
    assert caught.value.id == "TS-YAML-READ"


def test_the_shipped_files_are_plain() -> None:
    files = [*(REPOSITORY / "experiments").glob("*.yml"), *(REPOSITORY / "inventory").rglob("*.yml")]
    assert len(files) > 5
    for file in files:
        read_yaml(file)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


def both_ways(text: str) -> tuple[object, object]:
    """What each loader makes of a text; a refusal counts as one value."""
    results: list[object] = []
    for load in (plainyaml._quick, lambda text: yaml.load(text, Loader=plainyaml._Loader)):
        try:
            results.append(load(text))
        except (*plainyaml._UNREADABLE, plainyaml._Alias):
            results.append("refused")
    return results[0], results[1]


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML without libyaml has one loader")
@given(value=VALUES, flow=st.sampled_from([None, True, False]), wide=st.booleans())
def test_both_loaders_read_the_same(value: object, flow: bool | None, wide: bool) -> None:
    text = yaml.safe_dump({"a": value}, default_flow_style=flow, allow_unicode=wide, sort_keys=False)
    quick, slow = both_ways(text)
    assert quick == "refused" or repr(quick) == repr(slow)


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML without libyaml has one loader")
@given(text=st.text(st.sampled_from("ab: -[]{}&*!\t\u2028\x85é%@`\\'\"#|>?,~1.\n"), max_size=30))
def test_the_quick_loader_takes_nothing_that_the_other_refuses(text: str) -> None:
    quick, slow = both_ways(text)
    assert quick == "refused" or repr(quick) == repr(slow)


class Inner(Strict):
    low: int
    high: int

    @model_validator(mode="after")
    def _order(self) -> Inner:
        if self.low > self.high:
            raise ValueError(f"low must not be above high, {self.low} is above {self.high}")
        return self


class Outer(Strict):
    secretive: str
    number: Annotated[int, Field(ge=1)]
    inner: Inner

    @model_validator(mode="after")
    def _fit(self) -> Outer:
        if self.number > self.inner.high:
            raise ValueError(f"the number must not be above high, {self.number} is above {self.inner.high}")
        return self


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"number": 9}, "values do not go together; where: x.yml; expected: the number must not be above high, 9 is"),
        ({"inner": {"low": 4, "high": 3}}, "the values of inner do not go together; where: x.yml; expected: low must"),
        ({"number": 0}, "the value of number is wrong; where: x.yml; expected: Input should be greater"),
        ({"inner": {"low": 1}}, "the key inner.high is missing"),
        ({"inner": {"low": 1, "high": 2, "x": 1}}, "unknown key inner.x"),
    ],
)
def test_a_refusal_says_the_rule_not_all_values(changes: dict[str, object], line: str) -> None:
    data = {"secretive": "hunter2", "number": 1, "inner": {"low": 1, "high": 3}, **changes}
    with pytest.raises(TrisparkError) as caught:
        check_model(Outer, data, "x.yml", "TS-X-SCHEMA")
    assert str(caught.value).startswith(f"TS-X-SCHEMA: {line}")
    assert "hunter2" not in str(caught.value)
    assert "{'" not in str(caught.value)
    assert caught.value.remedy == "correct x.yml"
