"""What an image is built of decides its content hash, and nothing else does: not the directory, not the checkout."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from trispark.images.layers import EPOCH
from trispark.lab.images import Base, ensure_contexts, labels
from trispark.lab.inputs import without_scripts
from trispark.lab.layout import Paths
from trispark.lab.prepared import BUILD_ORDER, Image

REPO = Path(__file__).resolve().parents[3]
SOURCES = ("Dockerfiles", "lab/trispark_lab", "src/trispark_bench")


def contexts(root: Path, key: str = "k1") -> dict[str, Image]:
    paths = Paths(root)
    site_packages = paths.cache / "site-packages-0123456789ab"
    (site_packages / "numpy").mkdir(parents=True, exist_ok=True)
    (site_packages / "numpy" / "__init__.py").write_text("")
    bases = {name: Base(f"trispark/{name}-root:{root.name}-{key}", key) for name in ("lab-base", "lab-node")}
    return ensure_contexts(paths, bases, site_packages)


@pytest.fixture
def checkouts(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("one", "other"):
        for source in SOURCES:
            shutil.copytree(REPO / source, tmp_path / name / source, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "one", tmp_path / "other"


def test_two_checkouts_build_the_same_under_names_of_their_own(checkouts: tuple[Path, Path]) -> None:
    one, other = map(contexts, checkouts)
    assert tuple(one) == tuple(other) == BUILD_ORDER
    for name in BUILD_ORDER:
        assert one[name].content == other[name].content
        assert labels(one[name]) == labels(other[name])
        assert one[name].reference != other[name].reference


def test_the_two_engine_images_differ_in_what_their_engine_says(checkouts: tuple[Path, Path]) -> None:
    made = contexts(checkouts[0])
    said = {name: Path(made[name].context, "BUILD").read_text() for name in ("lab-engine", "lab-engine-canary")}
    assert said == {"lab-engine": "stock\n", "lab-engine-canary": "canary\n"}
    assert made["lab-engine"].content != made["lab-engine-canary"].content


def test_a_changed_source_changes_the_images_made_of_it_alone(checkouts: tuple[Path, Path]) -> None:
    root = checkouts[0]
    before = contexts(root)
    source = root / "src" / "trispark_bench" / "__main__.py"
    source.write_text(source.read_text() + "\n")
    after = contexts(root)
    assert [name for name in BUILD_ORDER if after[name].content != before[name].content] == ["bench"]


def test_another_base_changes_all(checkouts: tuple[Path, Path]) -> None:
    before, after = contexts(checkouts[0]), contexts(checkouts[0], "k2")
    assert [name for name in BUILD_ORDER if after[name].content == before[name].content] == []


def test_dockerfiles_know_the_epoch_of_the_layers() -> None:
    found = [
        (path.parent.name, int(number))
        for path in sorted((REPO / "Dockerfiles").glob("*/Dockerfile"))
        for number in re.findall(r"SOURCE_DATE_EPOCH=(\d+)", path.read_text())
    ]
    assert ("lab-node", EPOCH) in found
    assert {number for _, number in found} == {EPOCH}


def test_commands_of_packages_do_not_reach_an_image(tmp_path: Path) -> None:
    """They name the interpreter of the machine that made the context."""
    info = tmp_path / "numpy-1.dist-info"
    info.mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "f2py").write_text("#!/somewhere/python\n")
    (info / "RECORD").write_text("../../bin/f2py,sha256=x,3\nnumpy/bin/a.py,sha256=y,4\nbin/f2py,,\n")
    without_scripts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [info.name]
    assert (info / "RECORD").read_text() == "numpy/bin/a.py,sha256=y,4\n"
