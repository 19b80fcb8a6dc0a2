"""A broken catalog is refused by name when it is loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from trispark.catalog import load_catalog
from trispark.errors import TrisparkError

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("file", "old", "new", "error_id", "named"),
    [
        ("features.yml", "    available: true", "    available: true\n    colour: red", "TS-CATALOG-SCHEMA", "colour"),
        ("features.yml", "    available: true", "    available: false", "TS-CATALOG-SCHEMA", "unavailable_reason"),
        ("features.yml", "DSV41_WO_A_W8: 1", "DSV41_WO_A_W9: 1", "TS-ENV-UNLISTED", "DSV41_WO_A_W9"),
        ("features.yml", "DSV41_WO_A_W8: 1", "DSV41_WO_A_W8: true", "TS-ENV-TYPE", "DSV41_WO_A_W8=1"),
        ("features.yml", "DSV41_WO_A_W8: 1", "DSV41_WO_A_W8: 2", "TS-ENV-RANGE", "0 or 1"),
        ("features.yml", "DSV41_WO_A_W8: 1", "SERVER_PORT: 1", "TS-CATALOG-REFERENCE", "site.api_port"),
        ("features.yml", "DSV41_WO_A_W8: 1", "API_KEY: x", "TS-CATALOG-REFERENCE", "never"),
        ("features.yml", "id: wo_a.left", "id: wo_a.gone", "TS-CATALOG-REFERENCE", "wo_a.gone"),
        ("features.yml", "requires: [wo_a]", "requires: [mid]", "TS-CATALOG-REFERENCE", "mid"),
        ("features.yml", "requires: [wo_a]", "requires: [block_size]", "TS-CATALOG-REFERENCE", "nothing by itself"),
        ("features.yml", "requires: [wo_a]", "requires: [wo_a, wo_a]", "TS-CATALOG-SCHEMA", "requires"),
        ("features.yml", "requires: [wo_a]", "requires: [wo_a_mid]", "TS-CATALOG-REFERENCE", "not another entry"),
        ("features.yml", "stages: [c]", "stages: [a]", "TS-CATALOG-REFERENCE", "stage a has no trials"),
        ("features.yml", "c4.agg_tps]", "c4.speed]", "TS-CATALOG-SCHEMA", "c4.speed"),
        ("features.yml", "values: [2, 3, 4, 5]", "values: [2, 3, 3]", "TS-CATALOG-SCHEMA", "twice"),
        ("features.yml", "values: [2, 3, 4, 5]", "values: [2, 9]", "TS-ENV-RANGE", "1 to 7"),
        ("features.yml", "'8': {MIN", "'9': {MIN", "TS-CATALOG-SCHEMA", "no value of the sweep"),
        ("features.yml", "'8': {MIN_FREE_SLOTS_DELAY: 1}", "'8': {MIN_FREE_SLOTS_DELAY: 2}", "TS-ENV-RANGE", "0 to 1"),
        ("features.yml", "      sglang: the ad", "      vllm: the ad", "TS-CATALOG-REFERENCE", "vllm"),
        (
            "features.yml",
            "{id: experts.sliced, engines: [lab]}",
            "{id: experts.sliced, engines: [sglang]}",
            "TS-CATALOG-REFERENCE",
            "no evidence of the engine sglang",
        ),
        (
            "features.yml",
            "        - {id: arguments.fp4_indexer}\n",
            "        []\n",
            "TS-CATALOG-REFERENCE",
            "no evidence proves it on the engine sglang",
        ),
        (
            "features.yml",
            "only_in: [k5_cap_block_verify]",
            "only_in: [wo_a_w8_mid_drop]",
            "TS-CATALOG-REFERENCE",
            "no member",
        ),
        (
            "features.yml",
            "      DSV41_VERIFY_CAP: conf:0.1\n      DSV41_BLOCK",
            "      DSV41_VERIFY_CAP: '1'\n      DSV41_BLOCK",
            "TS-CATALOG-REFERENCE",
            "nothing that a member sets",
        ),
        (
            "features.yml",
            "members: [block_size, verify_cap_conf,",
            "members: [packed_engram, verify_cap_conf,",
            "TS-CATALOG-REFERENCE",
            "is a baseline",
        ),
        (
            "features.yml",
            "metric: c1-prose.engram_wait_us_per_lookup",
            "metric: c1-prose.luck",
            "TS-CATALOG-SCHEMA",
            "nothing that a boot measures",
        ),
        (
            "features.yml",
            "      low: 1.5\n      high: 6",
            "      low: 7\n      high: 6",
            "TS-CATALOG-SCHEMA",
            "above high",
        ),
        ("stages.yml", "  g:\n", "  h:\n", "TS-CATALOG-SCHEMA", "stages.h"),
        ("baseline.yml", "  TP_SIZE: 3\n", "", "TS-CATALOG-REFERENCE", "TP_SIZE"),
        ("baseline.yml", "  TP_SIZE: 3\n", "  TP_SIZE: 3\n  TP_SIZE: 3\n", "TS-YAML-SYNTAX", "TP_SIZE"),
        ("baseline.yml", "  TP_SIZE: 3\n", "  TP_SIZE: 3\n  NODE_RANK: 1\n", "TS-CATALOG-REFERENCE", "NODE_RANK"),
        ("baseline.yml", "DSV41_TP_PAD: 1", "DSV41_TP_PAD: 0", "TS-PLAN-EXCLUDED", "tp-pad-off"),
        ("baseline.yml", "EP_SIZE: 3", "EP_SIZE: 2", "TS-PLAN-EXCLUDED", "ep2"),
        ("baseline.yml", "STATIC: 0.95", "STATIC: 0.9", "TS-PLAN-EXCLUDED", "memory-fraction-low"),
        ("baseline.yml", "STATIC: 0.95", "STATIC: 0.98", "TS-PLAN-EXCLUDED", "memory-fraction-high"),
        ("baseline.yml", "'0'", "off", "TS-ENV-TYPE", "DSV41_VERIFY_CAP='0'"),
        ("baseline.yml", "'0'", "'conf:0.1'", "TS-PLAN-EXCLUDED", "confidence-cap-needs-block-5"),
        ("baseline.yml", "^LL128", '"^LL128\\nX=1"', "TS-ENV-VALUE", "U+000A"),
        ("baseline.yml", "SEED: 0", f"SEED: {'9' * 400}", "TS-ENV-RANGE", "RANDOM_SEED"),
        ("baseline.yml", "STATIC: 0.95", f"STATIC: {'9' * 400}", "TS-ENV-TYPE", "a finite number"),
        ("evidence.yml", "'\\[wo_a_w8\\] calls", "'(", "TS-CATALOG-SCHEMA", "regular expression"),
        ("evidence.yml", "<TP_SIZE>", "<TP_NUMBER>", "TS-ENV-UNLISTED", "TP_NUMBER"),
        ("evidence.yml", "<DSPARK_BLOCK_SIZE+1>", "<DSV41_VERIFY_CAP+1>", "TS-CATALOG-REFERENCE", "no whole number"),
        ("evidence.yml", "<TP_SIZE>", "<PAIR_LINKS>", "TS-CATALOG-REFERENCE", "not given PAIR_LINKS"),
        ("evidence.yml", "engines: [lab]", "engines: [vllm]", "TS-CATALOG-REFERENCE", "vllm"),
        (
            "exclusions.yml",
            "    at_least: 0.98",
            "    at_least: 0.98\n    any: true",
            "TS-CATALOG-SCHEMA",
            "exactly one",
        ),
        ("exclusions.yml", "values: [compact]", "values: [ragged]", "TS-ENV-RANGE", "RAGGED_VERIFY_MODE"),
        ("exclusions.yml", "class: forbidden", "class: odd", "TS-CATALOG-SCHEMA", "class"),
        ("exclusions.yml", "    class: forbidden\n", "", "TS-CATALOG-SCHEMA", "class"),
        (
            "exclusions.yml",
            "    class: forbidden\n",
            "    class: no-claim\n",
            "TS-CATALOG-SCHEMA",
            "any is of what is forbidden",
        ),
        ("exclusions.yml", "off_in: [canary_image]", "off_in: [canary]", "TS-CATALOG-REFERENCE", "canary"),
        (
            "exclusions.yml",
            "unless: {DSPARK_BLOCK_SIZE: 5}",
            "unless: {DSPARK_BLOCK_SIZE: 9}",
            "TS-ENV-RANGE",
            "1 to 7",
        ),
        ("exclusions.yml", "matches: 'conf:.*'", "matches: '('", "TS-CATALOG-SCHEMA", "regular expression"),
        ("exclusions.yml", "name: DSV41_TP_PAD", "name: DSV41_TP_PAT", "TS-CATALOG-REFERENCE", "cannot be judged"),
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
        ("env_allowlist.yml", "'[0-9A-Fa-f.:]+'", "'['", "TS-CATALOG-SCHEMA", "regular expression"),
        (
            "env_allowlist.yml",
            "    omit_value: auto",
            "    omit_value: maybe",
            "TS-ENV-RANGE",
            "SGLANG_RUST_BUILD_MODE",
        ),
        (
            "env_allowlist.yml",
            "    switch: true\n    omit_value: 0\n",
            "    switch: true\n",
            "TS-CATALOG-SCHEMA",
            "left out at 0",
        ),
        ("env_allowlist.yml", "    default: 409600", "    default: 4", "TS-ENV-RANGE", "CONTEXT_LENGTH"),
        ("env_allowlist.yml", "    min: 4096\n", "    min: 9999999\n", "TS-CATALOG-SCHEMA", "above max"),
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
    assert "\n" not in str(caught.value)
