"""The static check of adapters: sources and descriptions against the matrix, without importing the engine."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from trispark.catalog import load_catalog
from trispark.cli import adapters as verbs
from trispark.cli import exit_codes
from trispark.cli.app import app
from trispark.engine_api import wheels
from trispark.engine_api.check import check
from trispark.engine_api.interface import Symbol
from trispark.engine_api.judge import judge
from trispark.engine_api.model import AdapterNeeds, Description, Need, Statement, Wheel, load_builds, load_needs
from trispark.engine_api.sources import SourceInterface
from trispark.engine_api.table import PAGE, replaced, table
from trispark.engine_api.wheels import wheel_path
from trispark.errors import TrisparkError
from trispark.host.machine import LocalMachine, Outcome

ROOT = Path(__file__).resolve().parents[3]
SOURCES = {
    "engine/__init__.py": "",
    "engine/model.py": """
import typing
from typing import TYPE_CHECKING
from engine.kernels import matmul as product
from .layers import Base, missing_one
if TYPE_CHECKING:
    from engine.kernels import only_for_types
try:
    import fast as kernel
except ImportError:
    kernel = None
if typing:
    def chosen(x): ...
else:
    def other(x, y): ...
LIMIT: int = 3
class Model(Base):
    field: int
    def __init__(self, config, *, rank=0):
        self.config = config
        self.a, self.b = 1, 2
    def forward(self, ids, /, positions, *rest, flag=False, **more): ...
    @classmethod
    def make(cls, x): ...
""",
    "engine/layers/__init__.py": "from engine.layers.base import Base\nmissing_one = 1\n",
    "engine/layers/base.py": "class Base:\n    def load(self, weights):\n        self.loaded = True\n",
    "engine/kernels.py": "def matmul(o, wo_a, is_decode): ...\n",
}


@pytest.fixture
def engine() -> SourceInterface:
    return SourceInterface(SOURCES.get)


@pytest.mark.parametrize(
    ("symbol", "parameters"),
    [
        ("Model", {"self", "config", "rank"}),
        ("Model.forward", {"self", "ids", "positions", "rest", "flag", "more"}),
        ("Model.make", {"cls", "x"}),
        ("Model.load", {"self", "weights"}),  # of a base that another module defines, and a package hands on
        ("product", {"o", "wo_a", "is_decode"}),  # imported by value under another name
        ("chosen", {"x"}),
        ("other", {"x", "y"}),
        ("kernel", set()),
        ("LIMIT", set()),
        ("missing_one", set()),
    ],
)
def test_what_a_module_has(engine: SourceInterface, symbol: str, parameters: set[str]) -> None:
    found = engine.find("engine.model", symbol)
    assert isinstance(found, Symbol)
    assert found.parameters == parameters


@pytest.mark.parametrize(
    "symbol", ["gone", "Model.gone", "Gone.forward", "only_for_types", "matmul", "Model.forward.x"]
)
def test_what_a_module_does_not_have(engine: SourceInterface, symbol: str) -> None:
    assert engine.find("engine.model", symbol) is False


def test_what_instances_have(engine: SourceInterface) -> None:
    found = engine.find("engine.model", "Model")
    assert isinstance(found, Symbol)
    assert {"config", "a", "b", "field", "loaded", "forward"} <= found.attributes
    assert "rank" not in found.attributes


def test_a_module_that_is_not_there(engine: SourceInterface) -> None:
    assert engine.has_module("engine.layers")
    assert not engine.has_module("engine.heads")
    assert engine.find("engine.heads", "Head") is False


def need(symbol: str | None, *parameters: str, attributes: Sequence[str] = (), module: str = "engine.model") -> Need:
    return Need(module=module, symbol=symbol, parameters=parameters, attributes=tuple(attributes))


HERE, GONE = need("Model.forward", "ids"), need("Model.gone")


@pytest.mark.parametrize(
    ("adapter", "status", "missing"),
    [
        (AdapterNeeds(needs=(HERE,)), "binds", ()),
        (AdapterNeeds(needs=(HERE, GONE)), "not-applicable", ("engine.model:Model.gone",)),
        (
            AdapterNeeds(needs=(need("Model.forward", "ids", "mask"),)),
            "not-applicable",
            ("engine.model:Model.forward(mask)",),
        ),
        (AdapterNeeds(needs=(need("Model", attributes=["a", "c"]),)), "not-applicable", ("engine.model:Model.c",)),
        (AdapterNeeds(needs=(need("X", module="engine.heads"),)), "not-applicable", ("engine.heads",)),
        (AdapterNeeds(needs=(need(None, module="engine.layers"),)), "binds", ()),
        (AdapterNeeds(needs=(GONE,), native=(HERE,)), "native", ()),
        (AdapterNeeds(needs=(HERE,), native=(GONE,)), "binds", ()),
        (AdapterNeeds(any=(((GONE,), (HERE,)),)), "binds", ()),
        (AdapterNeeds(any=(((GONE,), (GONE, HERE)),)), "not-applicable", ("engine.model:Model.gone",)),
    ],
)
def test_a_cell_of_a_release(
    engine: SourceInterface, adapter: AdapterNeeds, status: str, missing: tuple[str, ...]
) -> None:
    found = judge(adapter, engine)
    assert (found.status, found.missing, found.unknown) == (status, missing, ())


def described(**modules: Any) -> Description:
    told = {
        "engine.model": {"Model.forward": {"parameters": ["ids"], "without": ["mask"]}, "Model.gone": {"absent": True}}
    }
    statement = {"builds": ["x"], "basis": "a test", "modules": told, "absent": ["engine.heads"]}
    return Description((Statement.model_validate_json(json.dumps(statement)),))


@pytest.mark.parametrize(
    ("adapter", "status"),
    [
        (AdapterNeeds(needs=(HERE,)), "binds"),
        (AdapterNeeds(needs=(need("Model.forward", "positions"),)), "undescribed"),
        (AdapterNeeds(needs=(need("Model.forward", "mask"),)), "not-applicable"),
        (AdapterNeeds(needs=(need("Model.make"),)), "undescribed"),
        (AdapterNeeds(needs=(need("X", module="engine.layers"),)), "undescribed"),
        (AdapterNeeds(needs=(need("X", module="engine.heads"),)), "not-applicable"),
        (AdapterNeeds(needs=(GONE, need("Model.make"))), "not-applicable"),
        (AdapterNeeds(needs=(HERE,), native=(need("Model.forward", "mask"),)), "binds"),
        (AdapterNeeds(needs=(HERE,), native=(need("Model.forward", "joint"),)), "undescribed"),
        (AdapterNeeds(any=(((GONE,), (need("Model.make"),)),)), "undescribed"),
    ],
)
def test_a_cell_of_a_described_build(adapter: AdapterNeeds, status: str) -> None:
    assert judge(adapter, described()).status == status


# -- the whole check, on a small engine of its own ---------------------------------------------------------------------


def write_wheel(path: Path, sources: dict[str, str]) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in sources.items():
            archive.writestr(name, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with one release, one described build and two adapters."""
    kept = tmp_path / ".trispark" / "engine" / "wheels"
    kept.mkdir(parents=True)
    digest = write_wheel(kept / "sglang-1.2.3-py3.whl", SOURCES)
    wheel = {"version": "1.2.3", "file": "sglang-1.2.3-py3.whl", "sha256": digest, "python": "3.12", "platform": "any"}
    builds = {
        "schema_version": 1,
        "engine": "sglang",
        "builds": {
            "sglang==1.2.3": {"title": "a release", "wheel": wheel},
            "image@1": {"title": "an image", "described": True, "images": ["sha256:" + "1" * 64]},
        },
        "adapters": {
            "first": {"title": "first", "builds": {"sglang==1.2.3": "binds", "image@1": "binds"}},
            "second": {
                "title": "second",
                "builds": {
                    "sglang==1.2.3": {
                        "status": "not-applicable",
                        "reason": "it never had it",
                        "lacks": ["engine.model:Model.gone"],
                    },
                    "image@1": {"status": "undescribed", "reason": "nobody said"},
                },
            },
        },
    }
    builds["images"] = {
        "release": {
            "title": "a release",
            "builds": ["sglang==1.2.3"],
            "available": False,
            "lacks": {"pages": "of 64", "layout": "of a token"},
        }
    }
    told = {
        "builds": ["image@1"],
        "basis": "a test",
        "modules": {"engine.model": {"Model.forward": {"parameters": ["ids"]}}},
    }
    needs = {
        "first": {"needs": [{"module": "engine.model", "symbol": "Model.forward", "parameters": ["ids"]}]},
        "second": {"needs": [{"module": "engine.model", "symbol": "Model.gone"}]},
    }
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments/engine_builds.yml").write_text(yaml.safe_dump(builds))
    (tmp_path / "experiments/engine_interfaces.yml").write_text(
        yaml.safe_dump({"schema_version": 1, "statements": [told]})
    )
    (tmp_path / "adapters/trispark_hooks").mkdir(parents=True)
    (tmp_path / "adapters/trispark_hooks/needs.json").write_text(json.dumps({"schema_version": 1, "adapters": needs}))
    return tmp_path


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_equal(root: Path) -> None:
    found = check(root)
    assert found.equal
    assert [len(cells) for cells in found.observed.values()] == [2, 2]
    assert list(check(root, ["image@1"]).observed["first"]) == ["image@1"]


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("status: undescribed\n", "status: native\n", "second on image@1: expected native, observed undescribed"),
        (
            "Model.gone",
            "Model.lost",
            "expected not-applicable (engine.model:Model.lost), observed not-applicable (engine.model:Model.gone)",
        ),
        (
            "        image@1: binds\n",
            "        image@1: {status: native, reason: x}\n",
            "first on image@1: expected native",
        ),
    ],
)
def test_every_cell_that_differs_is_named(root: Path, old: str, new: str, named: str) -> None:
    path = root / "experiments/engine_builds.yml"
    text = path.read_text()
    indented = next((line for line in text.splitlines(keepends=True) if line.strip() == old.strip()), old)
    change(path, indented, indented.replace(old.strip(), new.strip()))
    found = check(root)
    assert not found.equal
    (problem,) = found.problems()
    assert named in problem


def refused(root: Path, *engines: str) -> TrisparkError:
    with pytest.raises(TrisparkError) as caught:
        check(root, engines)
    return caught.value


def test_an_unknown_build_is_refused(root: Path) -> None:
    assert refused(root, "sglang==9.9.9").id == "TS-ADAPTERS-ENGINE"


def test_matrix_and_needs_name_the_same_adapters(root: Path) -> None:
    change(root / "adapters/trispark_hooks/needs.json", '"second"', '"third"')
    error = refused(root)
    assert (error.id, error.observed) == ("TS-ADAPTERS-ROWS", "second, third")


@pytest.mark.parametrize("text", ["{", '{"schema_version": 1, "adapters": {"x": {"needz": []}}}'])
def test_damaged_needs_are_refused(root: Path, text: str) -> None:
    (root / "adapters/trispark_hooks/needs.json").write_text(text)
    assert refused(root).id == "TS-ADAPTERS-NEEDS"


def test_a_build_without_a_description_is_refused(root: Path) -> None:
    change(root / "experiments/engine_interfaces.yml", "image@1", "image@2")
    assert refused(root).id == "TS-ADAPTERS-DESCRIPTION"


class Pip(LocalMachine):
    """Answers for pip: writes `content` where it was told to, or fails."""

    def __init__(self, content: bytes | None, stderr: str = "") -> None:
        self.content = content
        self.stderr = stderr
        self.ran: list[list[str]] = []

    def run(self, argv: Sequence[str], **_: Any) -> Outcome:
        self.ran.append(list(argv))
        folder = next(Path(word.removeprefix("--dest=")) for word in argv if word.startswith("--dest="))
        self.lock = (folder / "lock.txt").read_text()
        if self.content is None:
            return Outcome(1, "", self.stderr)
        (folder / "sglang-1.2.3-py3.whl").write_bytes(self.content)
        return Outcome(0)


def a_wheel(content: bytes) -> Wheel:
    digest = hashlib.sha256(content).hexdigest()
    return Wheel(version="1.2.3", file="sglang-1.2.3-py3.whl", sha256=digest, python="3.12", platform="any")


def test_a_wheel_is_downloaded_once_with_its_hash(tmp_path: Path) -> None:
    pip = Pip(b"wheel")
    for _ in range(2):
        assert wheel_path(tmp_path, a_wheel(b"wheel"), pip).read_bytes() == b"wheel"
    (argv,) = pip.ran
    assert {"download", "--require-hashes", "--no-deps", "--only-binary=:all:"} <= set(argv)
    assert pip.lock == f"sglang==1.2.3 --hash=sha256:{hashlib.sha256(b'wheel').hexdigest()}\n"
    assert [path.name for path in (tmp_path / wheels.PLACE / "wheels").iterdir()] == ["sglang-1.2.3-py3.whl"]


def test_another_file_under_the_name_is_downloaded_again(tmp_path: Path) -> None:
    place = tmp_path / wheels.PLACE / "wheels"
    place.mkdir(parents=True)
    (place / "sglang-1.2.3-py3.whl").write_bytes(b"cut off")
    assert wheel_path(tmp_path, a_wheel(b"wheel"), Pip(b"wheel")).read_bytes() == b"wheel"


@pytest.mark.parametrize(
    ("pip", "error_id", "observed"),
    [
        (Pip(None, "WARNING: retry\nERROR: No matching distribution found\n"), "TS-ADAPTERS-WHEEL", "No matching"),
        (Pip(b"another file"), "TS-ADAPTERS-HASH", hashlib.sha256(b"another file").hexdigest()),
    ],
)
def test_a_wheel_that_cannot_be_had_is_refused(tmp_path: Path, pip: Pip, error_id: str, observed: str) -> None:
    with pytest.raises(TrisparkError) as caught:
        wheel_path(tmp_path, a_wheel(b"wheel"), pip)
    assert caught.value.id == error_id
    assert observed in caught.value.observed
    assert list((tmp_path / wheels.PLACE / "wheels").iterdir()) == []


@pytest.mark.parametrize("broken", [".trispark/engine", ".trispark/engine/wheels"])
def test_a_place_that_cannot_be_written_to_is_refused(tmp_path: Path, broken: str) -> None:
    (tmp_path / broken).parent.mkdir(parents=True)
    (tmp_path / broken).write_text("a file")
    with pytest.raises(TrisparkError) as caught:
        wheel_path(tmp_path, a_wheel(b"wheel"), Pip(b"wheel"))
    assert caught.value.id == "TS-ADAPTERS-PLACE"
    assert str(tmp_path / broken) in caught.value.where
    assert exit_codes.of_error(caught.value) == exit_codes.REFUSED


def test_the_verb(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "REPO", root)
    done = CliRunner().invoke(app, ["adapters", "check", "--json"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    answer = json.loads(lines[-1])
    assert answer["equal"] is True
    assert answer["adapters"]["second"]["image@1"]["observed"] == "undescribed"
    assert "second on sglang==1.2.3: it never had it" in lines
    assert "image release: not available, it lacks layout, pages" in lines
    assert answer["images"]["release"]["available"] is False
    assert answer["images"]["release"]["lacks"] == {"pages": "of 64", "layout": "of a token"}
    change(root / "experiments/engine_builds.yml", "undescribed", "native")
    done = CliRunner().invoke(app, ["adapters", "check"])
    assert done.exit_code == 1
    assert "TS-ADAPTERS-MATRIX: second on image@1: expected native" in done.output


# -- the files of this checkout ----------------------------------------------------------------------------------------


def test_every_need_of_an_image_build_is_judged_as_the_matrix_says() -> None:
    """Without any wheel: the described builds alone."""
    names = [name for name, build in load_builds(ROOT).builds.items() if build.described]
    assert len(names) == 3
    found = check(ROOT, names)
    assert found.problems() == []


def test_a_dropped_need_or_symbol_would_be_seen(tmp_path: Path) -> None:
    for name in ("experiments", "adapters"):
        shutil.copytree(ROOT / name, tmp_path / name)
    change(tmp_path / "experiments/engine_interfaces.yml", "AcceptSampling.execute", "AcceptSampling.perform")
    names = [name for name, build in load_builds(ROOT).builds.items() if build.described]
    problems = check(tmp_path, names).problems()
    assert [problem.partition(":")[0] for problem in problems] == [f"block_verify on {name}" for name in names]


def test_needs_and_matrix_of_this_checkout_name_the_same_adapters() -> None:
    assert set(load_needs(ROOT)) == set(load_builds(ROOT).adapters)


def test_an_image_is_known_by_its_digest() -> None:
    builds = load_builds(ROOT)
    sparks = yaml.safe_load((ROOT / "inventory/sparks/group_vars/all/site.yml").read_text())
    assert builds.build_of(sparks["site_engine_image"]) == "dev-dsv41@37939c26"
    assert builds.build_of("registry.example/sglang@sha256:" + "0" * 64) is None


def test_an_image_of_a_release_is_not_available_and_says_what_it_lacks() -> None:
    """The list is that of docs/release-image.md."""
    release = load_builds(ROOT).images["release"]
    assert not release.available
    assert set(release.builds) == {name for name, build in load_builds(ROOT).builds.items() if build.wheel is not None}
    page = (ROOT / "docs/release-image.md").read_text(encoding="utf-8")
    lacking = page.partition("## Still lacking")[2].partition("## Notes")[0]
    assert set(release.lacks) == set(re.findall(r"^\| `([^`]+)`: ", lacking, re.MULTILINE))


@pytest.mark.parametrize(
    ("image", "why"),
    [
        ({"builds": ["sglang==1.2.3"], "available": False}, "lacks"),
        ({"builds": ["sglang==1.2.3"], "available": True, "lacks": {"x": "y"}}, "lacks"),
        ({"builds": ["sglang==9.9.9"], "available": False, "lacks": {"x": "y"}}, "sglang==9.9.9"),
    ],
)
def test_an_image_that_says_nothing_true_is_refused(root: Path, image: dict[str, Any], why: str) -> None:
    path = root / "experiments/engine_builds.yml"
    file = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**file, "images": {"release": {"title": "r", **image}}}))
    with pytest.raises(TrisparkError, match=why) as caught:
        load_builds(root)
    assert caught.value.id == "TS-CATALOG-SCHEMA"


def test_a_site_with_an_image_that_is_not_available_is_refused() -> None:
    catalog = load_catalog(ROOT)
    assert catalog.builds is not None
    digest = "sha256:" + "5" * 64
    known = catalog.builds.builds
    told = {**known, "sglang==0.5.21": known["sglang==0.5.21"].model_copy(update={"images": (digest,)})}
    catalog = replace(catalog, builds=catalog.builds.model_copy(update={"builds": told}))
    for features in ([], ["folded_fence"]):
        refused, notes = catalog.judge_build(features, "sglang", f"registry.example/sglang@{digest}")
        assert [error.id for error in refused] == ["TS-PLAN-IMAGE"]
        assert "sparse pages" in refused[0].observed
        assert notes == []
    assert catalog.judge_build([], "sglang", "registry.example/sglang@sha256:" + "0" * 64) == ([], [])
    assert catalog.judge_build([], "lab", f"registry.example/sglang@{digest}") == ([], [])


def test_the_page_has_the_table_of_the_matrix() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert replaced(page, table(load_builds(ROOT))) == page, "run: python -m trispark.engine_api.table --write"
    assert all(f"| `{name}`: " in page for name in load_needs(ROOT))
