"""The shipped catalog is consistent; a broken one is refused; stages give only their own features."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.catalog import STAGES, Catalog, load_catalog
from trispark.errors import TrisparkError

REPOSITORY = Path(__file__).resolve().parents[3]


def refusal(catalog: Catalog, stage: str, feature: str | None) -> TrisparkError:
    with pytest.raises(TrisparkError) as caught:
        catalog.select(stage, feature)
    return caught.value


def test_shipped_catalog(catalog: Catalog) -> None:
    assert tuple(catalog.stages) == STAGES
    assert catalog.features_of("stage_c") == ("wo_a", "engram_prefetch")
    assert catalog.features_of("stage_d") == ("wo_a_mid", "wo_a_drop")
    assert catalog.sets_of("wo_a") == {"DSV41_WO_A_W8": 1}
    assert catalog.baseline["DSV41_CACHE_GIB"] == 0.0
    assert isinstance(catalog.baseline["DSV41_CACHE_GIB"], float)


@pytest.mark.parametrize("stage", ["c", "stage_c"])
def test_select_gives_the_feature(catalog: Catalog, stage: str) -> None:
    assert catalog.select(stage, "wo_a") == "wo_a"


def test_stage_without_trial_needs_none(catalog: Catalog) -> None:
    assert catalog.select("a", None) is None


@pytest.mark.parametrize(
    ("stage", "feature", "error_id", "shown"),
    [
        ("c", None, "TS-FEATURE-MISSING", "one of: wo_a"),
        ("c", "", "TS-FEATURE-MISSING", "one of: wo_a"),
        ("c", "wo_b", "TS-FEATURE-UNKNOWN", "one of: wo_a"),
        ("b", "wo_a", "TS-FEATURE-STAGE", "no feature in this version"),
        ("a", "wo_a", "TS-FEATURE-STAGE", "leave -e feature out"),
        ("b", None, "TS-FEATURE-MISSING", "no feature in this version"),
        ("h", "wo_a", "TS-STAGE-UNKNOWN", "a, b, c, d, e, f, g"),
    ],
)
def test_select_refuses_with_the_list(
    catalog: Catalog, stage: str, feature: str | None, error_id: str, shown: str
) -> None:
    error = refusal(catalog, stage, feature)
    assert error.id == error_id
    assert shown in str(error)


@given(stage=st.text(max_size=8), feature=st.none() | st.text(max_size=8))
def test_select_never_fails_otherwise(catalog: Catalog, stage: str, feature: str | None) -> None:
    with suppress(TrisparkError):
        catalog.select(stage, feature)


@pytest.mark.parametrize(
    ("file", "old", "new", "error_id", "named"),
    [
        ("features.yml", "    available: true", "    available: true\n    colour: red", "TS-CATALOG-SCHEMA", "colour"),
        ("features.yml", "    available: true", "    available: false", "TS-CATALOG-SCHEMA", "unavailable_reason"),
        ("features.yml", "DSV41_WO_A_W8: 1", "DSV41_WO_A_W9: 1", "TS-ENV-UNLISTED", "DSV41_WO_A_W9"),
        ("features.yml", "DSV41_WO_A_W8: 1", "DSV41_WO_A_W8: on", "TS-ENV-TYPE", "0 or 1"),
        ("features.yml", "DSV41_WO_A_W8: 1", "DSV41_WO_A_W8: 2", "TS-ENV-RANGE", "0 or 1"),
        ("features.yml", "DSV41_WO_A_W8: 1", "SERVER_PORT: 1", "TS-CATALOG-REFERENCE", "site.api_port"),
        ("features.yml", "id: wo_a.left", "id: wo_a.gone", "TS-CATALOG-REFERENCE", "wo_a.gone"),
        ("features.yml", "requires: [wo_a]", "requires: [mid]", "TS-CATALOG-REFERENCE", "mid"),
        ("features.yml", "stages: [c]", "stages: [a]", "TS-CATALOG-REFERENCE", "stage a has no trials"),
        ("features.yml", "c4.agg_tps]", "c4.speed]", "TS-CATALOG-SCHEMA", "c4.speed"),
        ("stages.yml", "  g:\n", "  h:\n", "TS-CATALOG-SCHEMA", "stages.h"),
        ("baseline.yml", "  TP_SIZE: 3\n", "", "TS-CATALOG-REFERENCE", "TP_SIZE"),
        ("baseline.yml", "  TP_SIZE: 3\n", "  TP_SIZE: 3\n  TP_SIZE: 3\n", "TS-YAML-SYNTAX", "TP_SIZE"),
        ("baseline.yml", "  TP_SIZE: 3\n", "  TP_SIZE: 3\n  NODE_RANK: 1\n", "TS-CATALOG-REFERENCE", "NODE_RANK"),
        ("baseline.yml", "DSV41_TP_PAD: 1", "DSV41_TP_PAD: 0", "TS-PLAN-EXCLUDED", "tp-pad-off"),
        ("baseline.yml", "EP_SIZE: 3", "EP_SIZE: 2", "TS-PLAN-EXCLUDED", "ep2"),
        ("baseline.yml", "STATIC: 0.95", "STATIC: 0.9", "TS-PLAN-EXCLUDED", "memory-fraction-low"),
        ("baseline.yml", "STATIC: 0.95", "STATIC: 0.98", "TS-PLAN-EXCLUDED", "memory-fraction-high"),
        ("baseline.yml", "'0'", "off", "TS-ENV-TYPE", "DSV41_VERIFY_CAP"),
        ("baseline.yml", "^LL128", '"^LL128\\nX=1"', "TS-ENV-VALUE", "U+000A"),
        ("evidence.yml", "'\\[wo_a_w8\\] calls", "'(", "TS-CATALOG-SCHEMA", "regular expression"),
        (
            "exclusions.yml",
            "    at_least: 0.98",
            "    at_least: 0.98\n    any: true",
            "TS-CATALOG-SCHEMA",
            "exactly one",
        ),
        ("exclusions.yml", "values: [compact]", "values: [ragged]", "TS-ENV-RANGE", "RAGGED_VERIFY_MODE"),
        ("env_allowlist.yml", "flag: --tp\n", "flag: --port\n", "TS-CATALOG-SCHEMA", "--port appears twice"),
        ("env_allowlist.yml", "name: TP_SIZE", "name: EP_SIZE", "TS-CATALOG-SCHEMA", "EP_SIZE appears twice"),
        ("env_allowlist.yml", "source: site.api_port", "source: group_vars", "TS-CATALOG-SCHEMA", "unknown source"),
        ("env_allowlist.yml", "    inert_value: nvme\n", "", "TS-CATALOG-SCHEMA", "inert_value"),
        (
            "env_allowlist.yml",
            "loggable: true\n    description: Rank",
            "description: Rank",
            "TS-CATALOG-SCHEMA",
            "loggable",
        ),
        ("engines.yml", "gpus: false", "gpus: no thanks", "TS-CATALOG-SCHEMA", "gpus"),
    ],
)
def test_broken_catalog_is_refused(tmp_path: Path, file: str, old: str, new: str, error_id: str, named: str) -> None:
    shutil.copytree(REPOSITORY / "experiments", tmp_path / "experiments")
    path = tmp_path / "experiments" / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(TrisparkError) as caught:
        load_catalog(tmp_path)
    assert caught.value.id == error_id
    assert named in str(caught.value)


def test_misplaced_catalog_keys_are_refused(catalog: Catalog) -> None:
    catalog.refuse_misplaced({"feature": "-e", "repair": "-e"})
    for name in ("DSV41_WO_A_W8", "NODE_RANK", "DSV41_SHARED_PAD_K"):
        with pytest.raises(TrisparkError) as caught:
            catalog.refuse_misplaced({"feature": "-e", name: "-e"})
        assert (caught.value.id, caught.value.where) == ("TS-PLAN-PLACE", "-e")


def test_evidence_follows_the_settings_not_the_name(catalog: Catalog) -> None:
    off = catalog.evidence_rules(catalog.baseline, 3)
    on = catalog.evidence_rules({**catalog.baseline, "DSV41_WO_A_W8": 1}, 3)
    assert [(rule.id, rule.must_appear) for rule in off] == [
        (f"{name}.present", False) for name in ("prefetch", "wo_a", "wo_a_drop", "wo_a_mid")
    ]
    assert [(rule.id, rule.must_appear) for rule in on] == [
        ("prefetch.present", False),
        ("wo_a.calls", True),
        ("wo_a.left", False),
        ("wo_a.twins", True),
        ("wo_a_drop.present", False),
        ("wo_a_mid.present", False),
    ]
    assert all(rule.ranks == (0, 1, 2) for rule in (*off, *on))
