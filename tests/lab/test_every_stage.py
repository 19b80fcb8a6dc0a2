"""One trial of each mechanism of the stages B to G, to its verdict; the engines' logs kept on the nodes are read from
outside. Block sizes are in test_stages.py, the projection's twins alone in test_trial_and_rollback.py."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.slow]

ALL = ("spark0", "spark1", "spark2")
HEAD = ("spark0",)


@dataclass(frozen=True)
class Case:
    """`settings`: of the candidate and not of its baseline. `lines`: (expression, nodes whose log must have it); no log
    of the baseline may."""

    stage: str
    feature: str
    value: str
    settings: dict[str, str]
    lines: tuple[tuple[str, tuple[str, ...]], ...]


CASES = (
    Case(
        "b",
        "k5_cap_block_verify",
        "",
        {"DSPARK_BLOCK_SIZE": "5", "DSV41_VERIFY_CAP": "conf:0.1", "DSV41_BLOCK_VERIFY": "1"},
        (
            (r"gamma=5, verify_num_draft_tokens=6", ALL),
            (r"\[verify_cap\] draft confidence head built: True", ALL),
            (r"\[block_verify\] sampled blocks=[1-9]", HEAD),
        ),
    ),
    Case(
        "c",
        "engram_prefetch",
        "",
        {"DSV41_ENGRAM_PREFETCH": "1"},
        ((r"Engram prefetch ARMED", ALL), (r"Engram prefetch served=[1-9]\d* synchronous=\d+", ALL)),
    ),
    Case(
        "d",
        "wo_a_mid",
        "",
        {"DSV41_WO_A_W8_MID": "1"},
        ((r"\[wo_a_w8\] mid path armed: 9\.\.192 rows", ALL), (r"calls twin=[1-9]\d* dense=\d+ mid=[1-9]", ALL)),
    ),
    Case(
        "d",
        "wo_a_drop",
        "",
        {"DSV41_WO_A_W8_DROP": "1"},
        ((r"\[wo_a_w8\] released the \S+ copy of 2 wo_a weights \((?!0\.0 )[\d.]+ MB\); 0 kept", ALL),),
    ),
    Case(
        "e",
        "draft_tau",
        "",
        {"DSV41_DRAFT_TAU": "0.8"},
        ((r"\[draft_tau\] draft temperature x0\.8", ALL), (r"\[draft_tau\] sampled proposals=[1-9]", HEAD)),
    ),
    Case(
        "e",
        "block_verify",
        "",
        {"DSV41_BLOCK_VERIFY": "1"},
        ((r"\[block_verify\] armed", ALL), (r"\[block_verify\] sampled blocks=[1-9]", HEAD)),
    ),
    Case(
        "e",
        "verify_cap_fixed",
        "",
        {"DSV41_VERIFY_CAP": "2"},
        ((r"\[verify_cap\] armed \(2\): ", ALL), (r"remap captured into the verify graph for M=4\b", ALL)),
    ),
    Case("f", "ep1", "", {"EP_SIZE": "1"}, ((r"MoE layer=\d+ rank=\d+ ep_size=1 experts=\[0,", ALL),)),
    Case(
        "g",
        "engram_cache",
        "0.25",
        {"DSV41_CACHE_GIB": "0.25", "DSV41_CACHE_WAYS": "16"},
        (
            (r"Exact nvme Engram .*\([1-9]\d* slots, 16-way", ALL),
            (r"(?<!nvme )Engram layer=\d+ lookups=\d+ hit_rate=(?!0\.0%)\d", ALL),
        ),
    ),
    Case(
        "g",
        "slots",
        "8",
        {"MAX_RUNNING_REQUESTS": "8", "MIN_FREE_SLOTS_DELAY": "1"},
        ((r"max_total_num_tokens=\d+, .*max_running_requests=8\b", HEAD),),
    ),
)


def records_of(lab: Any) -> list[dict[str, Any]]:
    script = "for f in /var/lib/trispark/records/*.json; do cat $f; done"
    return [json.loads(line) for line in lab.node("spark0", "sh", "-c", script).decode().splitlines()]


def kept_log(lab: Any, node: str, boot: str) -> str:
    """What the engine of a boot that has ended wrote, from the node itself."""
    return str(lab.node(node, "cat", f"/var/lib/trispark/boots/{boot}/engine.log").decode())


def generation(lab: Any, name: str) -> str:
    return str(lab.inspect(name)["Config"]["Labels"]["trispark.generation"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.stage}-{case.feature}")
def test_a_trial_runs_to_its_verdict_with_the_mechanism_seen_on_its_ranks(serving: Any, case: Case) -> None:
    if case.feature == "engram_cache":
        # A cache is tried only where stage A of the same baseline measured a wait that is left.
        assert serving.play("stage_a").rc == 0
    baseline = generation(serving, "spark0")
    count = len(records_of(serving))
    asked = {"feature": case.feature} | ({"value": case.value} if case.value else {})
    played = serving.play(f"stage_{case.stage}", timeout_s=900, **asked)
    assert played.rc == 0, played.output[-4000:]
    records = records_of(serving)[count:]
    (trial,) = [record for record in records if record["kind"] == "trial"]
    # Two boots decide nothing; only what can be told from them is told.
    assert trial["outcome"]["verdict"] == "INCONCLUSIVE"
    assert trial["outcome"]["restored"] == baseline
    changed = {name: str(pair["candidate"]) for name, pair in trial["resolved"]["changed"].items()}
    assert changed == case.settings, "one change, and nothing beside it"
    arms = {boot["arm"]: boot["boot_id"] for boot in trial["boots"]}
    boots = {record["boot_id"]: record for record in records if record["kind"] == "boot"}
    assert {boots[boot]["outcome"]["state"] for boot in arms.values()} == {"valid"}
    for node in serving.nodes:
        logs = {arm: kept_log(serving, node, boot) for arm, boot in arms.items()}
        for expression, nodes in case.lines:
            found = re.search(expression, logs["candidate"])
            assert (found is not None) or node not in nodes, f"{node} lacks {expression}"
            assert not re.search(expression, logs["baseline"]), f"{node}: the baseline has {expression}"
    for name in serving.nodes:
        assert generation(serving, name) == baseline
    held = [rank["memory"]["resident_bytes"] for boot in arms.values() for rank in boots[boot]["observed"]["ranks"]]
    assert all(held)
    assert played.output.count(" memory: engine ") == len(serving.nodes)
    if case.feature == "engram_prefetch":
        checks = [record for record in records if record["kind"] == "boot" and record["requested"].get("slot") == 0]
        assert [check["bench"] for check in checks] == [None], "the comparing boot comes first and is not measured"
        for node in serving.nodes:
            text = kept_log(serving, node, checks[0]["boot_id"])
            assert "gathers differing from the synchronous path per layer = [0, 0]" in text
