"""Every row of the review is mapped once, to entries that exist."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from trispark.catalog import Catalog
from trispark.errors import TrisparkError
from trispark.review_map import ReviewMapFile, check_review_map, load_review_map

REPOSITORY = Path(__file__).resolve().parents[3]
Content = dict[str, Any]


@pytest.fixture
def content() -> Content:
    data: Content = yaml.safe_load((REPOSITORY / "experiments" / "review_map.yml").read_text(encoding="utf-8"))
    return data


def test_the_shipped_map_is_whole(catalog: Catalog) -> None:
    found = load_review_map(REPOSITORY, catalog)
    assert len(found.rows) == sum(len(rows) for rows in found.labels.values())
    assert found.labels["stages"] == ("A", "B", "C", "D", "E", "F", "G")
    assert len(found.labels["candidates"]) == 12
    assert len(found.labels["do_not_borrow"]) == 9
    assert {table for table in found.labels if table.startswith("section_")} == {
        *("section_1_wo_a", "section_2_speculation", "section_3_engram"),
        *("section_4_kernels", "section_5_rocenante", "section_6_three_ranks"),
    }


def test_a_stage_row_names_entries_of_that_stage(catalog: Catalog) -> None:
    for row in load_review_map(REPOSITORY, catalog).rows:
        if row.table == "stages":
            assert [name for name in row.features if row.row.lower() not in catalog.features[name].stages] == []


def unmap(content: Content) -> None:
    content["rows"].remove(next(row for row in content["rows"] if row["row"] == "EP2"))


def double(content: Content) -> None:
    content["rows"].append(dict(content["rows"][0]))


def double_label(content: Content) -> None:
    content["labels"]["stages"].append("A")


def invent(content: Content) -> None:
    content["rows"].append({"table": "stages", "row": "H", "features": ["wo_a"]})


def misspell(content: Content) -> None:
    content["rows"][0]["features"] = ["packed_engine"]


def forget_a_feature(content: Content) -> None:
    for row in content["rows"]:
        row["features"] = [name for name in row.get("features", []) if name != "wo_a_mid"]
        if not row["features"]:
            del row["features"]
            row["elsewhere"] = "nowhere"


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (unmap, "the row 'EP2' of candidates is not mapped"),
        (double, "is mapped twice"),
        (double_label, "the label 'A' of stages is there twice"),
        (invent, "the row 'H' of stages is no label"),
        (misspell, "names packed_engine"),
        (forget_a_feature, "no row asks for wo_a_mid"),
    ],
)
def test_a_map_that_is_not_whole_is_refused(
    catalog: Catalog, content: Content, edit: Callable[[Content], None], named: str
) -> None:
    edit(content)
    with pytest.raises(TrisparkError) as caught:
        check_review_map(ReviewMapFile.model_validate(content, strict=False), catalog)
    assert caught.value.id == "TS-CATALOG-REVIEW"
    assert named in str(caught.value)


@pytest.mark.parametrize("fields", [{}, {"features": ["wo_a"], "elsewhere": "x"}, {"features": ["wo_a", "wo_a"]}])
def test_a_row_is_answered_in_one_way(catalog: Catalog, tmp_path: Path, fields: Content) -> None:
    text = yaml.safe_dump({"schema_version": 1, "labels": {"t": ["x"]}, "rows": [{"table": "t", "row": "x", **fields}]})
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "review_map.yml").write_text(text, encoding="utf-8")
    with pytest.raises(TrisparkError) as caught:
        load_review_map(tmp_path, catalog)
    assert caught.value.id == "TS-CATALOG-SCHEMA"
