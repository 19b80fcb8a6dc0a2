"""Whatever is edited in the catalog, overridden or asked for: a refusal with a stable id, never a traceback."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from trispark.allowlist import Kind, Support, Variable, format_value
from trispark.catalog import Catalog, load_catalog
from trispark.errors import TrisparkError
from trispark.render import Templates, parse_args, parse_env
from trispark.resolve import resolve, resolve_arms
from trispark.review_map import load_review_map
from trispark.site import Site

REPOSITORY = Path(__file__).resolve().parents[3]
EXPERIMENTS = REPOSITORY / "experiments"
FILES = sorted(path.name for path in EXPERIMENTS.glob("*.yml"))
TEXTS = {name: (EXPERIMENTS / name).read_text(encoding="utf-8") for name in FILES}
ID = re.compile(r"TS(-[A-Z0-9]+){2,}")
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10)
ODD = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(max_size=4), SCALARS, max_size=2)
TEMPLATES = Templates(REPOSITORY)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("edited")
    shutil.copytree(EXPERIMENTS, root / "experiments")
    return root


def attempt(work: Callable[[], object]) -> TrisparkError | None:
    """The refusal, one line with an id; None without one. Anything else that is raised fails the test."""
    try:
        work()
    except TrisparkError as error:
        refusal = error
    else:
        return None
    assert ID.fullmatch(refusal.id)
    assert "\n" not in str(refusal)
    return refusal


def loaded(root: Path) -> TrisparkError | None:
    """The refusal of the catalog or of its map."""
    return attempt(lambda: load_review_map(root, load_catalog(root)))


def edited(scratch: Path, name: str, text: str) -> TrisparkError | None:
    path = scratch / "experiments" / name
    try:
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        return loaded(scratch)
    finally:
        path.write_text(TEXTS[name], encoding="utf-8")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a document."""
    yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from places(inner, (*path, key))


DOCUMENTS = {name: yaml.safe_load(text) for name, text in TEXTS.items()}
PLACES = {name: [path for path in places(document) if path] for name, document in DOCUMENTS.items()}


@settings(max_examples=60)
@given(data=st.data())
def test_any_value_in_any_place_of_the_catalog(scratch: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(FILES))
    path = data.draw(st.sampled_from(PLACES[name]))
    document = yaml.safe_load(TEXTS[name])
    target = document
    for key in path[:-1]:
        target = target[key]
    change = data.draw(st.sampled_from(["replace", "remove", "rename", "double"]))
    if change == "remove" or (change in ("rename", "double") and isinstance(target, list)):
        del target[path[-1]]
    elif change == "rename":
        target[data.draw(st.text(max_size=8))] = target.pop(path[-1])
    elif change == "double":
        target[data.draw(st.sampled_from(sorted(map(str, target))))] = target[path[-1]]
    else:
        target[path[-1]] = data.draw(ODD)
    edited(scratch, name, yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


@settings(max_examples=30)
@given(data=st.data())
def test_any_damage_to_the_text_of_the_catalog(scratch: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(FILES))
    text = TEXTS[name]
    first = data.draw(st.integers(0, len(text)))
    last = data.draw(st.integers(first, min(len(text), first + 200)))
    edited(scratch, name, text[:first] + data.draw(st.text(max_size=12)) + text[last:])


def test_the_catalog_itself_is_whole(scratch: Path) -> None:
    assert loaded(scratch) is None


@settings(max_examples=80)
@given(data=st.data())
def test_any_override_of_any_feature(site: Site, catalog: Catalog, project: Path, data: st.DataObject) -> None:
    names = sorted(catalog.allowlist.names())
    likely = st.sampled_from(["0", "1", "2", "5", "yes", "False", " 1", "", "'1'", "conf:0.1", "off", "1e9", "٣", "-0"])
    overrides = data.draw(st.dictionaries(st.sampled_from(names) | st.text(max_size=6), likely | st.text(), max_size=3))
    feature = data.draw(st.none() | st.sampled_from(sorted(catalog.features)) | st.text(max_size=6))
    value = data.draw(st.none() | st.sampled_from(["5", "2", "0.25", "8"]) | st.text(max_size=4))
    promoted: Any = data.draw(st.sampled_from([{}, {"DSPARK_BLOCK_SIZE": 5}, {"MAX_RUNNING_REQUESTS": 8}]))
    if feature is None:
        attempt(lambda: resolve(site, catalog, None, overrides, project, promoted=promoted))
    else:
        attempt(lambda: resolve_arms(site, catalog, feature, overrides, project, value=value, promoted=promoted))


def deliverable(catalog: Catalog) -> list[Variable]:
    return [
        variable
        for variable in catalog.allowlist.variables()
        if variable.type is not Kind.PAIR_LINK and variable.source != "head.rendezvous"
    ]


ANYTHING = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    [
        "a b",
        " a",
        "a ",
        "#a",
        "a#b",
        "$HOME",
        "${X}",
        "`id`",
        "'a'",
        '"a"',
        "a\\n",
        "{{ a }}",
        "ä€",
        "日本",
        "a\nB=1",
        "\u2028",
    ]
)


@settings(max_examples=200)
@given(data=st.data())
def test_a_value_arrives_byte_by_byte_or_is_refused(catalog: Catalog, data: st.DataObject) -> None:
    """From an override to the environment and the command line of a container, through the rendered files."""
    names = [variable.name for variable in deliverable(catalog)]
    variable = catalog.allowlist.require(data.draw(st.sampled_from(names)), "test")
    likely = data.draw(st.booleans())
    text = data.draw(ANYTHING)
    if variable.type is Kind.PATH:
        text = "/" + text
    elif likely:
        text = data.draw(st.sampled_from(["0", "1", "3", "0.95", *(variable.choices or ())])) + data.draw(
            st.sampled_from(["", "", " ", "\t", '"', "\u00a0"])
        )
    refusal = attempt(lambda: variable.parse(text, "-e"))
    if refusal is not None:
        assert refusal.id in ("TS-ENV-TYPE", "TS-ENV-RANGE", "TS-ENV-VALUE")
        return
    value = variable.parse(text, "-e")
    sent = format_value(value)
    if isinstance(value, str):
        assert sent == text
    env, command = {variable.name: sent}, ["engine", "--x", sent]
    assert parse_env(TEMPLATES.render_env(env)) == env
    assert parse_args(TEMPLATES.render_args(command)) == command
    assert TEMPLATES.render_env(env).encode("utf-8").endswith(f"\n{variable.name}={sent}\n".encode())


def test_loading_two_hundred_features_stays_quick(tmp_path: Path) -> None:
    """More than two hundred entries, five times the shipped ones; the bound is generous, a busy machine is slow."""
    shutil.copytree(EXPERIMENTS, tmp_path / "experiments")
    document = DOCUMENTS["features.yml"]
    model = {**document["features"]["wo_a"], "couples": []}
    features = {**document["features"], **{f"copy_{number}": model for number in range(200)}}
    text = "\n".join(
        yaml.safe_dump({name: entry}, sort_keys=False, allow_unicode=True) for name, entry in features.items()
    )
    body = "".join(f"  {line}\n" for line in text.splitlines())
    (tmp_path / "experiments" / "features.yml").write_text(f"schema_version: 1\nfeatures:\n{body}", encoding="utf-8")
    started = time.process_time()
    catalog = load_catalog(tmp_path)
    took = time.process_time() - started
    assert len(catalog.features) >= 200
    assert took < 1.5, f"{took:.2f} s of processor time"


def test_every_engine_is_named_by_every_variable(catalog: Catalog) -> None:
    for variable in catalog.allowlist.variables():
        assert set(variable.engines) == {"lab", "sglang"}, variable.name
        assert set(variable.engines.values()) <= set(Support)
