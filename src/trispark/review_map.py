"""experiments/review_map.yml: which row of the review became which entry of the catalog, and that none is left out.

The review itself is no part of this project. Its row labels are data of the map, so that a row without an entry, a row
that is mapped twice and an entry that no row asks for are found by name.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from trispark.catalog import DIRECTORY, Catalog
from trispark.catalog_model import Id
from trispark.errors import TrisparkError
from trispark.plainyaml import Strict, check_model, read_yaml

FILE = f"{DIRECTORY}/review_map.yml"
Label = Annotated[str, Field(min_length=1, max_length=120)]


class Row(Strict):
    """One row of the review: the features that it became, or where else it is answered."""

    table: Id
    row: Label
    features: tuple[Id, ...] = ()
    elsewhere: str | None = None

    @model_validator(mode="after")
    def _answered(self) -> Row:
        if bool(self.features) == (self.elsewhere is not None):
            raise ValueError(f"the row {self.row!r} needs features, or elsewhere, and not both")
        if len(set(self.features)) != len(self.features):
            raise ValueError(f"the row {self.row!r} names a feature twice")
        return self


class ReviewMapFile(Strict):
    """experiments/review_map.yml. `labels`: {table: every row of it, in its order}."""

    schema_version: Literal[1]
    labels: dict[Id, tuple[Label, ...]] = Field(min_length=1)
    rows: tuple[Row, ...]


def load_review_map(root: Path, catalog: Catalog) -> ReviewMapFile:
    """The map, checked against the catalog. Raises TS-CATALOG-SCHEMA, TS-CATALOG-REVIEW, TS-YAML-*."""
    content = check_model(ReviewMapFile, read_yaml(root / FILE), FILE, "TS-CATALOG-SCHEMA")
    check_review_map(content, catalog)
    return content


def check_review_map(content: ReviewMapFile, catalog: Catalog) -> None:
    """Raises TS-CATALOG-REVIEW for the first row that is unmapped, doubled or unknown, or feature without row."""
    labels = [(table, label) for table, rows in content.labels.items() for label in rows]
    for table, label in _doubled(labels):
        raise _refusal(f"the label {label!r} of {table} is there twice", "each label once", label)
    mapped = [(row.table, row.row) for row in content.rows]
    for table, label in _doubled(mapped):
        raise _refusal(f"the row {label!r} of {table} is mapped twice", "each row once", label)
    for table, label in labels:
        if (table, label) not in mapped:
            raise _refusal(f"the row {label!r} of {table} is not mapped", "a feature for every row", label)
    for row in content.rows:
        if (row.table, row.row) not in labels:
            raise _refusal(f"the row {row.row!r} of {row.table} is no label", "a label of the review", row.row)
        for feature in row.features:
            if feature not in catalog.features:
                raise _refusal(f"the row {row.row!r} names {feature}", "a feature of features.yml", feature)
    named = {feature for row in content.rows for feature in row.features}
    for feature, entry in catalog.features.items():
        if feature not in named and not entry.control:
            raise _refusal(f"no row asks for {feature}", "a row for every feature", feature)


def _doubled(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [pair for pair, count in Counter(pairs).items() if count > 1]


def _refusal(what: str, expected: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-CATALOG-REVIEW", f"the map of the review: {what}", FILE, expected, observed, f"correct {FILE}"
    )
