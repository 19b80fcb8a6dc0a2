"""From boot records to a verdict: validity before speed, the look that ends a walk early, the site's floor."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trispark.bench_windows import window_metrics
from trispark.boot_validity import NEEDED, UNPROBED, check_boot, failed, unchecked
from trispark.catalog import Catalog
from trispark.decision_rules import BOOTS_PER_ARM, LOOKS, DecisionRules, arms_of, block_order, rules_for
from trispark.errors import TrisparkError
from trispark.noise_floor import keep_noise, kept_noise, measure_noise, noise_file
from trispark.stats_power import site_power
from trispark.trial_metrics import boot_metrics, decided_at, is_decided, measured_of, verdict_of
from trispark.walk_plan import Slot, TrialOfWalk, WalkPlan
from trispark.walk_slots import why_pointless

NOISE = (0.0, 0.4, -0.5, 0.2, 0.3, -0.4)
WALK = "t20260102T030405Z-a1b2"


def record(number: int, rate: float, *, wait_s: float = 1.0, arm: str = "baseline", **changes: Any) -> dict[str, Any]:
    """A valid boot that measured one prose request and one wave of four."""
    seconds = 64 / rate

    def request(tag: str, total: float) -> dict[str, Any]:
        return {"tag": tag, "index": 0, "completion_tokens": 65, "ttft_s": 0.3, "total_s": 0.3 + total,
                "text_sha": "x", "error": None}  # fmt: skip

    def counters(lookups: int, wait: float) -> dict[str, Any]:
        return {"engram": {"1": {"lookups": lookups, "reads": lookups, "wait_s": wait}}}

    found: dict[str, Any] = {
        "kind": "boot",
        "boot_id": f"b{number}",
        "requested": {"trial": WALK, "slot": number, "purpose": "trial", "arm": arm},
        "outcome": {"state": "valid", "reason": "all gates passed"},
        "gates": [{"check_id": "canary.text", "ok": True, "observed": "42"}],
        "resolved": {"generation": "g0", "settings": {"MAX_TOTAL_TOKENS": 750000}},
        "observed": {"engine": {"max_total_tokens": 749824}},
        "bench": {
            "input": {"repetitions": 1, "max_tokens": 65, "workloads": {"prose": ["0" * 64]}},
            "requests": [request("c1-prose", seconds), request("c1-code", seconds), request("c4", seconds)],
            "waves": [{"tag": "c4", "tokens": 260, "wall_s": 260 / (2 * rate)}],
            "checks": [
                {"tag": tag, "step_s": 2 / rate, "tokens_per_step": 2.0, "problem": None}
                for tag in ("c1-prose", "c1-code", "c4")
            ],
            "server_info": [{"tag": "c1-prose", "before": counters(0, 0.0), "after": counters(1000, wait_s)}],
        },
    }
    return {**found, **changes}


def walk_of(catalog: Catalog, feature: str, boots: int) -> WalkPlan:
    rules = rules_for(catalog.features[feature], boots, "seed")
    slots = tuple(
        Slot(number, arm, True, False, (0,), None, feature, "g0", "measures")
        for number, arm in enumerate(arms_of(rules.order))
    )
    trial = TrialOfWalk(WALK, "p0", None, feature, (), "g0", "g1", rules.as_dict())
    return WalkPlan(WALK, "lab", "c", feature, None, "g0", None, slots, (trial,), {}, boots)


def records_of(walk: WalkPlan, gain: float, *, waits: tuple[float, float] = (1.0, 0.5)) -> list[dict[str, Any]]:
    """One a slot: the k-th boot of an arm has the k-th noise, from the other end for the candidate."""
    seen = {"baseline": 0, "candidate": 0}
    found = []
    for slot in walk.slots:
        place = seen[slot.arm]
        seen[slot.arm] += 1
        candidate = slot.arm == "candidate"
        noise = NOISE[::-1][place] if candidate else NOISE[place]
        rate = 30 * (1 + noise / 100) * (1 + gain if candidate else 1)
        wait = waits[candidate] * (1 + noise / 50)
        found.append(record(slot.slot, rate, wait_s=wait, arm=slot.arm))
    return found


def split(walk: WalkPlan, records: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    return [[records[slot.slot] for slot in walk.slots if slot.arm == arm] for arm in ("baseline", "candidate")]


def test_prompt_tokens_are_summed_by_tag_where_every_request_says_them() -> None:
    boot = record(1, 30.0)
    first, other, wave = boot["bench"]["requests"]
    boot["bench"]["requests"] = [
        {**first, "prompt_tokens": 7}, {**first, "prompt_tokens": 8}, {**other, "prompt_tokens": None}, wave,
    ]  # fmt: skip
    assert boot_metrics(boot).prompt_tokens == {"c1-prose": 15}


# -- rules


@pytest.mark.parametrize("boots", BOOTS_PER_ARM)
def test_every_feature_of_the_catalog_has_rules_that_survive_their_file_form(catalog: Catalog, boots: int) -> None:
    for entry in catalog.features.values():
        if not entry.tried:
            continue
        rules = rules_for(entry, boots, "seed")
        assert DecisionRules.of(rules.as_dict()) == rules
        assert [look.boots for look in rules.looks] == [size for size, _ in LOOKS[boots]]
        arms = arms_of(rules.order)
        assert arms.count("baseline") == arms.count("candidate") == boots
        assert arms[0] == "baseline"


def test_the_order_of_blocks_follows_the_seed_and_nothing_else() -> None:
    orders = {block_order(6, str(seed)) for seed in range(64)}
    assert len(orders) == 4, "both kinds of block at both free places"
    assert all(order[0] == "ABBA" for order in orders)
    assert block_order(6, "x") == block_order(6, "x")


@pytest.mark.parametrize(
    "change",
    [
        {"looks": [{"boots": 6, "level": 0.01}, {"boots": 4, "level": 0.01}]},
        {"looks": [{"boots": 8, "level": 0.01}]},
        {"futility": {"boots": 6, "estimate_at_most": 0.0}},
        {"primaries": []},
        {"version": 2},
        {"interval": 1.0},
        {"surplus": 1},
    ],
)
def test_rules_that_cannot_be_are_refused(catalog: Catalog, change: dict[str, Any]) -> None:
    rules = rules_for(catalog.features["wo_a"], 6, "seed").as_dict()
    with pytest.raises(ValueError, match="validation error"):
        DecisionRules.of({**rules, **change})
    twice = {**rules, "guards": [*rules["guards"], {**rules["guards"][0], "metric": "c4.agg_tps"}]}
    with pytest.raises(ValueError, match="watched twice"):
        DecisionRules.of(twice)


# -- validity


def test_the_rules_of_a_sound_boot() -> None:
    checks = check_boot(record(0, 30.0))
    assert {check.rule: check.status for check in checks} == {
        **dict.fromkeys(NEEDED, "passed"),
        "acceptance": "not checked",
        "quality": "not checked",
        **dict.fromkeys(UNPROBED, "not checked"),
    }
    assert unchecked([checks, checks]) == ("acceptance", "quality", *UNPROBED)


@pytest.mark.parametrize(("ok", "status"), [(True, "passed"), (False, "failed")])
def test_quality_is_checked_where_a_boot_was_asked(ok: bool, status: str) -> None:
    gate = {"check_id": "quality.logprobs", "rank": None, "ok": ok, "expected": "", "observed": "seen", "remedy": ""}
    sound = record(0, 30.0)
    checks = {check.rule: check for check in check_boot({**sound, "gates": [*sound["gates"], gate]})}
    assert checks["quality"].status == status


@pytest.mark.parametrize(
    ("change", "rule", "status"),
    [
        ({"observed": {"engine": {"max_total_tokens": 658176}}}, "kv_pin", "failed"),
        ({"observed": {"engine": {"max_total_tokens": 749823}}}, "kv_pin", "failed"),
        ({"observed": {"engine": {"max_total_tokens": None}}}, "kv_pin", "not checked"),
        ({"resolved": {"generation": "g0", "settings": {}}}, "kv_pin", "not checked"),
        ({"outcome": {"state": "invalid", "reason": "a gate"}}, "gates", "failed"),
        ({"gates": []}, "gates", "not checked"),
        ({"bench": None}, "requests", "not checked"),
        (
            {"gates": [{"check_id": "after_load.accept_length", "ok": False, "observed": "1.0"}]},
            "acceptance",
            "failed",
        ),
    ],
)
def test_each_rule_of_validity_fails_by_its_own_input(change: dict[str, Any], rule: str, status: str) -> None:
    found = {check.rule: check.status for check in check_boot(record(0, 30.0, **change))}
    assert found[rule] == status


def test_a_failed_request_makes_the_boot_take_no_part() -> None:
    broken = copy.deepcopy(record(0, 30.0))
    broken["bench"]["requests"][0]["error"] = "503"
    assert [check.rule for check in failed(check_boot(broken))] == ["requests"]
    assert not boot_metrics(broken).counts


def test_protocol_and_corpus_are_hashes_of_their_own_parts() -> None:
    plain = boot_metrics(record(0, 30.0))
    other = copy.deepcopy(record(1, 30.0))
    other["bench"]["input"]["workloads"] = {"prose": ["1" * 64]}
    text = boot_metrics(other)
    assert (text.protocol == plain.protocol, text.corpus == plain.corpus) == (True, False)
    other = copy.deepcopy(record(1, 30.0))
    other["bench"]["input"]["max_tokens"] = 66
    limit = boot_metrics(other)
    assert (limit.protocol == plain.protocol, limit.corpus == plain.corpus) == (False, True)
    assert plain.metrics["c1-prose.engram_wait_us_per_lookup"] == pytest.approx(1000.0)


# -- a walk that is decided early


@pytest.mark.parametrize(("gain", "code"), [(0.05, "GAIN"), (-0.05, "HARM"), (0.0005, "NO-GAIN"), (0.0108, None)])
def test_a_look_before_the_last_ends_the_walk_or_lets_it_go_on(catalog: Catalog, gain: float, code: str | None) -> None:
    walk = walk_of(catalog, "engram_prefetch", 6)
    records = records_of(walk, gain)
    found = {each["requested"]["slot"]: each for each in records}
    assert decided_at(walk, 0, {slot: found[slot] for slot in range(7)}) is None, "the look is not reached"
    assert decided_at(walk, 0, {slot: found[slot] for slot in range(8)}) == (None if code is None else 8)
    assert decided_at(walk, 0, found) == (None if code is None else 8)
    for slot in walk.slots:
        made = {number: each for number, each in found.items() if number < slot.slot}
        assert is_decided(walk, slot, made) is (code is not None and slot.slot >= 8)
        pointless = why_pointless(walk, slot, list(made.values()))
        assert pointless == ("the boots before it have decided the trial" if code and slot.slot >= 8 else None)
    if code is not None:
        eight = {slot: found[slot] for slot in range(8)}
        arms = [[eight[slot.slot] for slot in walk.slots[:8] if slot.arm == arm] for arm in ("baseline", "candidate")]
        assert verdict_of(walk.trials[0], *arms).code == code


def test_a_gain_whose_mechanism_stood_still_ends_the_walk_undecided(catalog: Catalog) -> None:
    walk = walk_of(catalog, "engram_prefetch", 6)
    records = records_of(walk, 0.05, waits=(1.0, 1.0))
    verdict = verdict_of(walk.trials[0], *split(walk, records))
    assert (verdict.verdict, verdict.code) == ("INCONCLUSIVE", "NO-MECHANISM")
    assert decided_at(walk, 0, {each["requested"]["slot"]: each for each in records}) == 8


@pytest.mark.parametrize("boots", [1, 2, 4])
def test_a_trial_with_one_look_or_none_makes_all_of_its_boots(catalog: Catalog, boots: int) -> None:
    walk = walk_of(catalog, "wo_a", boots)
    records = records_of(walk, 0.05)
    found = {each["requested"]["slot"]: each for each in records}
    assert decided_at(walk, 0, found) is None
    verdict = verdict_of(walk.trials[0], *split(walk, records))
    assert verdict.code == {1: "ONE-BOOT", 2: "TOO-FEW", 4: "GAIN"}[boots]


def test_arms_of_other_prompts_do_not_end_a_walk_early(catalog: Catalog) -> None:
    walk = walk_of(catalog, "wo_a", 6)
    records = records_of(walk, 0.05)
    records[1]["bench"]["input"]["max_tokens"] = 66
    assert decided_at(walk, 0, {each["requested"]["slot"]: each for each in records}) is None
    with pytest.raises(TrisparkError) as caught:
        verdict_of(walk.trials[0], *split(walk, records))
    assert caught.value.id == "TS-VERDICT-PROTOCOL"


def test_a_trial_that_was_planned_by_an_older_version_has_no_rules(catalog: Catalog) -> None:
    walk = walk_of(catalog, "wo_a", 6)
    old = replace(walk, trials=(replace(walk.trials[0], rules=None),))
    records = records_of(walk, 0.05)
    assert decided_at(old, 0, {each["requested"]["slot"]: each for each in records}) is None
    assert verdict_of(old.trials[0], *split(old, records)).code == "NO-RULES"


# -- the floor


def test_the_floor_is_that_of_the_newest_generations_equal_boots() -> None:
    records = [record(number, 30 * (1 + noise / 100)) for number, noise in enumerate(NOISE)]
    other = record(90, 60.0, resolved={"generation": "g9", "settings": {}})
    invalid = record(91, 90.0, outcome={"state": "invalid", "reason": "a gate"})
    noise = measure_noise("lab", [other, *records, invalid])
    assert noise.boots == tuple(f"b{number}" for number in range(6))
    found = noise.metrics["c1-prose.decode_tps"]
    assert found.sd == pytest.approx(0.00374, rel=0.01)
    assert found.floors["6"] == pytest.approx(2.571 * found.sd * (1 / 3) ** 0.5, rel=0.01)
    assert found.floors["4"] > found.floors["6"]
    assert noise.floor("c1-prose.decode_tps", 6) == found.floors["6"]
    assert noise.floor("c8.agg_tps", 6) is None
    assert noise.floor("c1-prose.ttft_s", 6) is None, "boots that agree to the last digit have no floor"
    assert noise.shows_no_harm("c1-prose.decode_tps", 6, 0.01)
    assert not noise.shows_no_harm("c1-prose.decode_tps", 6, 0.002)
    assert not noise.shows_no_harm("c8.agg_tps", 6, 0.4)
    with pytest.raises(TrisparkError) as caught:
        measure_noise("lab", records, "g9")
    assert caught.value.id == "TS-STATS-FLOOR"


def test_a_floor_can_be_that_of_one_trial_alone() -> None:
    quiet = [record(number, 30 * (1 + noise / 100)) for number, noise in enumerate(NOISE)]
    busy = [record(50 + number, rate) for number, rate in enumerate((20.0, 29.0, 24.0, 33.0))]
    for each in busy:
        each["requested"]["trial"] = "t20260101T000000Z-0000"
    assert measure_noise("lab", [*quiet, *busy], trial=WALK).boots == tuple(each["boot_id"] for each in quiet)
    assert measure_noise("lab", [*quiet, *busy]).metrics["c4.agg_tps"].sd > 0.1
    with pytest.raises(TrisparkError) as caught:
        measure_noise("lab", quiet, trial="t20260101T000000Z-0000")
    assert caught.value.observed == "0 of none in t20260101T000000Z-0000"


def test_boots_with_other_prompts_are_no_equal_boots() -> None:
    records = [record(number, 30 * (1 + noise / 100)) for number, noise in enumerate(NOISE)]
    for each in records[:3]:
        each["bench"]["input"]["max_tokens"] = 66
    with pytest.raises(TrisparkError) as caught:
        measure_noise("lab", records)
    assert caught.value.observed == "3 of g0"


def test_the_floor_is_kept_until_it_is_measured_anew(tmp_path: Path) -> None:
    assert kept_noise(tmp_path, "lab") is None
    noise = measure_noise("lab", [record(number, 30 * (1 + each / 100)) for number, each in enumerate(NOISE)])
    keep_noise(tmp_path, noise)
    assert kept_noise(tmp_path, "lab") == noise
    noise_file(tmp_path, "lab").write_text('{"site": "lab"}', encoding="utf-8")
    with pytest.raises(TrisparkError) as caught:
        kept_noise(tmp_path, "lab")
    assert caught.value.id == "TS-STATS-NOISEFILE"


def test_the_power_of_a_site_grows_with_boots_and_its_gain_is_above_its_floor() -> None:
    noise = measure_noise("lab", [record(number, 30 * (1 + each / 100)) for number, each in enumerate(NOISE)])
    rows = {(row.metric, row.boots): row for row in site_power(noise)}
    four, six = (rows["c1-prose.decode_tps", size] for size in (4, 6))
    assert None not in (four.gain, six.gain, four.slow_down, six.slow_down)
    assert (six.gain or 0) <= (four.gain or 0)
    assert (six.gain or 0) > (six.floor or 0)
    assert not any(metric.endswith("per_lookup") for metric, _ in rows)


# -- the steps of a boot


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, ["c1-prose.accept_length", "c1-prose.step_s"]),
        ({"problem": "12 tokens of others"}, []),
        ({"step_s": None}, ["c1-prose.accept_length"]),
        ({"tokens_per_step": None}, ["c1-prose.step_s"]),
        ({"tokens_per_step": 0.0, "step_s": float("nan")}, []),
    ],
    ids=["whole", "foreign", "no-step", "no-tokens", "no-measurement"],
)
def test_a_window_gives_the_time_and_the_tokens_of_a_step(change: dict[str, Any], names: list[str]) -> None:
    check = {"tag": "c1-prose", "step_s": 0.07, "tokens_per_step": 2.1, "problem": None, **change}
    assert list(window_metrics([check])) == names
    bench = {**record(0, 30.0)["bench"], "checks": [check]}
    assert set(names) <= set(measured_of(bench))
    assert window_metrics([]) == {}


@pytest.mark.parametrize(
    ("step", "code"), [(0.9, "GAIN"), (1.0, "NO-MECHANISM"), (1.1, "NO-MECHANISM"), (None, "NO-MECHANISM")]
)
def test_a_gain_in_rate_without_a_shorter_step_is_not_believed(catalog: Catalog, step: float | None, code: str) -> None:
    walk = walk_of(catalog, "wo_a", 6)
    records = records_of(walk, 0.1)
    for slot, found in zip(walk.slots, records, strict=True):
        for check in found["bench"]["checks"]:
            factor = step if slot.arm == "candidate" else 1.0
            check["step_s"] = None if factor is None else 0.07 * factor * (1 + slot.slot % 3 / 1000)
    verdict = verdict_of(walk.trials[0], *split(walk, records))
    assert verdict.code == code
    assert (verdict.verdict == "KEEP") is (code == "GAIN")


def test_every_movement_of_the_catalog_can_be_measured(catalog: Catalog) -> None:
    moved = {each.metric.partition(".")[2] for entry in catalog.features.values() for each in entry.moves}
    assert moved == {"step_s", "accept_length", "engram_wait_us_per_lookup"}
