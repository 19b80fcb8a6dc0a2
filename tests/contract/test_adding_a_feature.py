"""docs/adding-a-feature.md is followed to the letter on a copy of the catalog."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from trispark.catalog import load_catalog
from trispark.resolve import compare, resolve
from trispark.site import load_site
from trispark_lab.row_store import start_line

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adding-a-feature.md").read_text(encoding="utf-8")
BLOCKS = {match[1]: match[2] for match in re.finditer(r"```yaml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)}
SHOWN = re.search(r"```text\n(.*?)\n```", PAGE, re.DOTALL)
FEATURE = "io_threads_half"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The project's data with the page's blocks appended where it says."""
    for name in ("experiments", "templates", "adapters", "inventory"):
        shutil.copytree(ROOT / name, tmp_path / name)
    images = "".join(f"site_{name}_image: registry:5000/x@sha256:{'a' * 64}\n" for name in ("engine", "bench"))
    (tmp_path / "inventory/lab/group_vars/all/images.yml").write_text(images, encoding="utf-8")
    for name, text in BLOCKS.items():
        with (tmp_path / "experiments" / name).open("a", encoding="utf-8") as file:
            file.write(textwrap.indent(text, "  "))
    return tmp_path


def test_the_page_has_both_entries() -> None:
    assert set(BLOCKS) == {"evidence.yml", "features.yml"}
    assert list(yaml.safe_load(BLOCKS["features.yml"])) == [FEATURE]


def test_the_candidate_differs_in_the_one_key(root: Path) -> None:
    catalog, site = load_catalog(root), load_site(root / "inventory" / "lab")
    assert catalog.select("g", FEATURE) == FEATURE
    baseline = resolve(site, catalog, None, None, root)
    candidate = resolve(site, catalog, FEATURE, None, root)
    assert dict(compare(baseline, candidate).settings) == {"DSV41_IO_THREADS": (96, 48)}
    assert baseline.id != candidate.id


def test_the_evidence_tells_the_two_apart(root: Path) -> None:
    """The line is the one that the lab's engine prints; the page shows the baseline's."""
    catalog, site = load_catalog(root), load_site(root / "inventory" / "lab")
    pattern = re.compile(catalog.evidence["io_threads.half"].pattern)
    assert SHOWN
    line = SHOWN[1]
    assert "io_threads=96 " in line
    assert not pattern.search(line)
    assert pattern.search(line.replace("io_threads=96", "io_threads=48"))
    of = {
        name: [rule for rule in resolve(site, catalog, name, None, root).evidence if rule.id == "io_threads.half"]
        for name in (None, FEATURE)
    }
    assert [rule.must_appear for rule in of[None]] == [False]
    assert [(rule.must_appear, rule.ranks) for rule in of[FEATURE]] == [(True, (0, 1, 2))]


def test_the_shown_line_is_what_the_engine_prints() -> None:
    store = SimpleNamespace(shard=SimpleNamespace(layer=1, rank=0, first=0, end=66660), slots=0, packed=True)
    assert SHOWN
    assert SHOWN[1].endswith(f" {start_line(store, 0.0, 4, 96)}")
