"""Rendered files come back byte for byte, or are refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.errors import TrisparkError
from trispark.render import Templates, parse_args, parse_env

REPOSITORY = Path(__file__).resolve().parents[3]
HOSTILE = [
    " ",
    "  a b ",
    "'",
    '"',
    "a=b=c",
    "#x",
    "$HOME",
    "`id`",
    "\\n",
    "{{ x }}",
    "{% raw %}",
    "{# c #}",
    "\t",
    "ä\u2028\x85\x0b",
]
TEMPLATES = Templates(REPOSITORY)
lines = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0"))
names = st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True)


@pytest.mark.parametrize("value", [*HOSTILE, ""])
def test_hostile_values_come_back(value: str) -> None:
    env = {"A": value, "B": "1"}
    assert parse_env(TEMPLATES.render_env(env)) == env
    command = ["python3", value, "--x", value]
    assert parse_args(TEMPLATES.render_args(command)) == command


@given(env=st.dictionaries(names, lines), command=st.lists(lines))
def test_everything_on_one_line_comes_back(env: dict[str, str], command: list[str]) -> None:
    assert parse_env(TEMPLATES.render_env(env)) == env
    assert parse_args(TEMPLATES.render_args(command)) == command


@pytest.mark.parametrize("value", ["a\nB=1", "a\r", "\0"])
def test_what_would_not_come_back_is_refused(value: str) -> None:
    with pytest.raises(TrisparkError) as caught:
        TEMPLATES.render_env({"A": value})
    assert caught.value.id == "TS-RENDER-VALUE"
    with pytest.raises(TrisparkError) as caught:
        TEMPLATES.render_args(["x", value])
    assert caught.value.id == "TS-RENDER-VALUE"


@pytest.mark.parametrize("name", ["", "a", "A B", "#A", "A=B", "A\n"])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(TrisparkError) as caught:
        TEMPLATES.render_env({name: "1"})
    assert caught.value.id == "TS-RENDER-VALUE"


@pytest.mark.parametrize("text", ["A=1", "A\n", "A=1\nA=2\n", "\n", "a=1\n"])
def test_damaged_files_are_refused(text: str) -> None:
    with pytest.raises(TrisparkError) as caught:
        parse_env(text)
    assert caught.value.id == "TS-RENDER-PARSE"


@pytest.mark.parametrize("body", ["{{ nothing }}\n", "{% for x in %}\n"])
def test_broken_template_is_named(tmp_path: Path, body: str) -> None:
    shutil.copytree(REPOSITORY / "templates", tmp_path / "templates")
    (tmp_path / "templates" / "engine.env.j2").write_text(body, encoding="utf-8")
    with pytest.raises(TrisparkError) as caught:
        Templates(tmp_path).render_env({"A": "1"})
    assert caught.value.id == "TS-RENDER-TEMPLATE"
    assert "engine.env.j2" in str(caught.value)


def test_template_that_drops_a_value_is_noticed(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "templates", tmp_path / "templates")
    (tmp_path / "templates" / "launch.args.j2").write_text("{{ command[0] }}\n", encoding="utf-8")
    with pytest.raises(TrisparkError) as caught:
        Templates(tmp_path).render_args(["a", "b"])
    assert caught.value.id == "TS-RENDER-VALUE"
