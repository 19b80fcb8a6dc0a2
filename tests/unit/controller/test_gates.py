"""Healthy ranks pass; each single fault fails its own check on its own rank; what was not seen has failed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.controller.conftest import HASH

from trispark.catalog import Catalog
from trispark.gate_result import GateResult, failed_line
from trispark.gates import canary_request, evaluate, evaluate_after_load, failed, judged_patterns
from trispark.logparse import READ
from trispark.resolve import Resolution, resolve
from trispark.site import Site
from trispark_node import log_patterns
from trispark_node.fields import Fields
from trispark_node.logs import LogRequest, view
from trispark_node.redaction import TextRedactor

Observations = dict[str, dict[str, Any]]
Healthy = Callable[..., Observations]
NUMPY = "/opt/site-packages/numpy/core.so"
PER_RANK = {
    "identity.image_digest",
    "identity.adapters",
    "identity.source",
    "identity.libraries",
    "identity.engine_version",
    "identity.generation",
    "identity.mounts",
    "env.effective",
    "env.image_only",
    "env.command",
    "log.whole",
    "engram.packed",
    "engram.rows",
    "engram.reads",
    "canary.all_ranks",
}
LAYERS_ATTACHED = "evidence.packed.attached"
PACKED_LOST = {"engram.packed", LAYERS_ATTACHED, "evidence.packed.fallback"}
REPORTED = {f"evidence.arguments.{name}" for name in ("tp", "ep", "block", "slots")}


def every(resolution: Resolution) -> set[tuple[str, int | None]]:
    """All checks of a boot with their ranks."""
    evidence = {(f"evidence.{rule.id}", rank) for rule in resolution.evidence for rank in rule.ranks}
    return {("canary.text", None), *((check, rank) for check in PER_RANK for rank in range(3)), *evidence}


def bad(results: list[GateResult]) -> set[tuple[str, int | None]]:
    return {(result.check_id, result.rank) for result in failed(results)}


def test_healthy_boot_passes(
    baseline: Resolution, healthy: Healthy, canary: dict[str, Any], engram_rows: dict[int, int]
) -> None:
    results = evaluate(baseline, healthy(baseline), canary, engram_rows)
    assert failed(results) == []
    assert {(result.check_id, result.rank) for result in results} == every(baseline)


def change(path: list[Any], value: Any) -> Callable[[dict[str, Any]], None]:
    """An edit of one place of an observation; a callable value gets the old one."""

    def edit(seen: dict[str, Any]) -> None:
        target: Any = seen
        for key in path[:-1]:
            target = target[key]
        old = target.get(path[-1]) if isinstance(target, dict) else target[path[-1]]
        target[path[-1]] = value(old) if callable(value) else value

    return edit


def log(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    def edit(seen: dict[str, Any]) -> None:
        assert old in seen["log"]
        seen["log"] = seen["log"].replace(old, new)

    return edit


OTHER = "sha256:" + "c" * 64


@pytest.mark.parametrize(
    ("edit", "checks"),
    [
        (change(["image_digests"], [f"registry:5000/x@{OTHER}"]), {"identity.image_digest"}),
        (change(["image_digests"], []), {"identity.image_digest"}),
        (change(["image_id"], OTHER), {"identity.image_digest"}),
        (change(["adapters", "trispark_hooks/lab_wo_a_w8.py"], "0" * 64), {"identity.adapters"}),
        (change(["adapters", "extra.py"], "0" * 64), {"identity.adapters"}),
        (change(["adapters"], {}), {"identity.adapters"}),
        (change(["adapters"], None), {"identity.adapters"}),
        (change(["identity", "source", "hash"], "0" * 64), {"identity.source"}),
        (change(["identity", "source"], {"problem": "/opt/engine: no such directory"}), {"identity.source"}),
        (change(["identity", "source"], None), {"identity.source"}),
        (change(["identity", "libraries", "listed", "/usr/lib/libc.so.6"], "0" * 64), {"identity.libraries"}),
        (change(["identity", "libraries", "listed", NUMPY], "0" * 64), {"identity.libraries"}),
        (change(["identity", "libraries", "listed"], {"/usr/lib/libc.so.6": HASH["c"]}), {"identity.libraries"}),
        (change(["identity", "libraries", "listed", "/opt/numpy/second.so"], HASH["c"]), {"identity.libraries"}),
        (change(["identity", "libraries", "listed", "/usr/lib/libz.so"], "cannot be read: x"), {"identity.libraries"}),
        (change(["identity", "libraries", "listed"], {}), {"identity.libraries"}),
        (change(["identity"], None), {"identity.source", "identity.libraries"}),
        (change(["versions", "engine"], "trispark-lab 0.2.0"), {"identity.engine_version"}),
        (change(["versions", "packages", "numpy"], "2.2.0"), {"identity.engine_version"}),
        (change(["versions", "packages", "numpy"], None), {"identity.engine_version"}),
        (change(["versions"], None), {"identity.engine_version"}),
        (change(["labels", "trispark.generation"], "g" + "0" * 16), {"identity.generation"}),
        (change(["labels", "trispark.rank"], "7"), {"identity.generation"}),
        (change(["labels", "trispark.boot"], "b0"), {"identity.generation"}),
        (change(["labels", "trispark.epoch"], "10"), {"identity.generation"}),
        (change(["mounts", 1, "source"], "/srv/engram.old"), {"identity.mounts"}),
        (change(["mounts", 2, "source"], "/tmp/adapters"), {"identity.mounts"}),
        (change(["mounts", 0, "read_only"], False), {"identity.mounts"}),
        (change(["mounts", 3, "source"], "/var/lib/trispark/engine-state/g0/state"), {"identity.mounts"}),
        (change(["mounts", 3, "read_only"], True), {"identity.mounts"}),
        (change(["mounts"], lambda old: old[:2]), {"identity.mounts"}),
        (change(["mounts"], lambda old: [*old, {**old[0], "target": "/root"}]), {"identity.mounts"}),
        (change(["env", "DSV41_IO_THREADS"], "32"), {"env.effective"}),
        (change(["env", "SGLANG_NEW"], "1"), {"env.effective"}),
        (change(["env"], lambda old: {k: v for k, v in old.items() if k != "NCCL_PROTO"}), {"env.effective"}),
        (change(["env"], None), {"env.effective"}),
        (change(["image_env"], None), {"env.effective", "env.image_only"}),
        (change(["command"], lambda old: [*old[:-1], "4"]), {"env.command"}),
        (change(["command"], lambda old: [*old, "--trust"]), {"env.command"}),
        (change(["command"], None), {"env.command"}),
        (log("packed=True", "packed=False"), PACKED_LOST),
        (log("threads=96 packed=True", "threads=96 packed=False"), PACKED_LOST),
        (log("'ep_size': 3", "'ep_size': 1"), {"evidence.arguments.ep"}),
        (log("nvme Engram layer=14", "nvme Engram layer=15"), {"engram.packed", "engram.rows"}),
        (log("rows=[", "rows=[1"), {"engram.rows"}),
        (log("reads=160", "reads=320"), {"engram.reads"}),
        (log("Engram layer=1 lookups=160", "Engram layer=1 lookups=0"), {"engram.reads"}),
        (log("Engram layer=14 lookups", "Engram layer=14 asked"), {"engram.reads"}),
        (change(["log"], lambda old: old + "[wo_a_w8] calls twin=3 dense=0\n"), {"evidence.wo_a.present"}),
        (
            change(["log"], ""),
            {"engram.packed", "engram.rows", "engram.reads", "canary.all_ranks", LAYERS_ATTACHED, *REPORTED},
        ),
    ],
)
@pytest.mark.parametrize("rank", [0, 2])
def test_one_fault_fails_its_check_on_its_rank(
    baseline: Resolution,
    healthy: Healthy,
    canary: dict[str, Any],
    engram_rows: dict[int, int],
    rank: int,
    edit: Callable[[dict[str, Any]], None],
    checks: set[str],
) -> None:
    seen = healthy(baseline)
    edit(seen[f"spark{rank}"])
    results = evaluate(baseline, seen, canary, engram_rows)
    silent_head = {("evidence.engine.ready", 0)} if rank == 0 and seen["spark0"]["log"] == "" else set()
    assert bad(results) == {(check, rank) for check in checks} | silent_head
    assert all(result.remedy and "\n" not in result.line() for result in failed(results))


def test_missing_observation_fails_every_check_of_the_rank(
    baseline: Resolution, healthy: Healthy, canary: dict[str, Any], engram_rows: dict[int, int]
) -> None:
    nothing: tuple[dict[str, Any] | None, ...] = ({}, None)
    for lost in nothing:
        seen: dict[str, Any] = {**healthy(baseline), "spark1": lost}
        assert bad(evaluate(baseline, seen, canary, engram_rows)) == {pair for pair in every(baseline) if pair[1] == 1}


def test_nothing_observed_is_no_pass(baseline: Resolution) -> None:
    results = evaluate(baseline, {}, None, {})
    assert bad(results) == every(baseline)


def test_without_layers_the_engram_checks_fail(baseline: Resolution, healthy: Healthy, canary: dict[str, Any]) -> None:
    checks = {check for check, _ in bad(evaluate(baseline, healthy(baseline), canary, {}))}
    assert {"engram.packed", "engram.rows", "engram.reads"} <= checks


def test_odd_node_is_named(
    baseline: Resolution, healthy: Healthy, canary: dict[str, Any], engram_rows: dict[int, int]
) -> None:
    seen = healthy(baseline)
    seen["spark1"]["image_id"] = OTHER
    (result,) = failed(evaluate(baseline, seen, canary, engram_rows))
    assert result.rank == 1
    assert f"the odd node spark1: image id {OTHER}, spark0, spark2 have" in result.observed


def test_without_majority_all_ranks_fail(
    baseline: Resolution, healthy: Healthy, canary: dict[str, Any], engram_rows: dict[int, int]
) -> None:
    seen = healthy(baseline)
    for rank in range(3):
        seen[f"spark{rank}"]["versions"]["engine"] = f"v{rank}"
    results = evaluate(baseline, seen, canary, engram_rows)
    assert bad(results) == {("identity.engine_version", rank) for rank in range(3)}


def test_image_that_sets_a_controlled_variable(
    baseline: Resolution, healthy: Healthy, canary: dict[str, Any], engram_rows: dict[int, int]
) -> None:
    seen = healthy(baseline)
    for side in ("env", "image_env"):
        seen["spark2"][side]["NCCL_ALGO"] = "Ring"
    (result,) = failed(evaluate(baseline, seen, canary, engram_rows))
    assert (result.check_id, result.rank, result.observed) == ("env.image_only", 2, "NCCL_ALGO")


def test_rendered_value_wins_over_the_image_s(
    baseline: Resolution, healthy: Healthy, canary: dict[str, Any], engram_rows: dict[int, int]
) -> None:
    seen = healthy(baseline)
    for rank in range(3):
        seen[f"spark{rank}"]["image_env"]["DSV41_CACHE_GIB"] = "16"
    assert failed(evaluate(baseline, seen, canary, engram_rows)) == []


def test_a_secret_value_is_never_shown(
    baseline: Resolution, healthy: Healthy, canary: dict[str, Any], engram_rows: dict[int, int]
) -> None:
    seen = healthy(baseline)
    seen["spark0"]["env"]["API_KEY"] = "hunter2"
    (result,) = failed(evaluate(baseline, seen, canary, engram_rows))
    assert "API_KEY not planned" in result.line()
    assert "hunter2" not in result.line()


@pytest.mark.parametrize(
    ("field", "value"),
    [("content", "42\n"), ("content", "43"), ("content", None), ("finish_reason", "length"), ("status", 500)],
)
def test_wrong_answer_fails(
    baseline: Resolution,
    healthy: Healthy,
    canary: dict[str, Any],
    engram_rows: dict[int, int],
    field: str,
    value: object,
) -> None:
    choice = canary["body"]["choices"][0]
    {"content": choice["message"], "finish_reason": choice, "status": canary}[field][field] = value
    assert bad(evaluate(baseline, healthy(baseline), canary, engram_rows)) == {("canary.text", None)}


@pytest.mark.parametrize("body", ["not json", "[]", '{"choices": []}', None, 7])
def test_no_answer_fails(baseline: Resolution, healthy: Healthy, engram_rows: dict[int, int], body: object) -> None:
    answer = {"status": 200, "body": body}
    results = evaluate(baseline, healthy(baseline), answer, engram_rows)
    assert bad(results) == {("canary.text", None)}
    assert "after a repair of shards, boot again" in failed(results)[0].line()


@pytest.mark.parametrize(
    ("count", "purpose", "tail"),
    [
        (1, "serve", "do: r"),
        (3, "serve", "(and 2 more: ./trispark records show b1 has them)"),
        (2, "trial", "(and 1 more: ./trispark records show b1 has them)"),
        (2, "verify", "(and 1 more: the events of this run have them)"),
    ],
)
def test_the_line_says_where_further_failed_gates_can_be_read(count: int, purpose: str, tail: str) -> None:
    results = [GateResult(f"gate.{number}", None, False, "e", "o", "r") for number in range(count)]
    line = failed_line(results, {"boot_id": "b1", "purpose": purpose})
    assert line.startswith("gate.0: ")
    assert line.endswith(tail)


def test_answer_as_text_is_read(
    baseline: Resolution, healthy: Healthy, canary: dict[str, Any], engram_rows: dict[int, int]
) -> None:
    answer = {**canary, "body": json.dumps(canary["body"])}
    assert failed(evaluate(baseline, healthy(baseline), answer, engram_rows)) == []
    assert canary_request(baseline)["body"]["temperature"] == 0


def test_lookups_before_the_canary_do_not_count(
    baseline: Resolution, healthy: Healthy, canary: dict[str, Any], engram_rows: dict[int, int]
) -> None:
    before = {"spark0": {"1": 0, "14": 0}, "spark1": {"1": 160, "14": 0}, "spark2": {"1": 160, "14": 160}}
    results = evaluate(baseline, healthy(baseline), canary, engram_rows, before)
    assert bad(results) == {("engram.reads", 1), ("engram.reads", 2), ("canary.all_ranks", 2)}


def after_load(baseline: Resolution, healthy: Healthy, engram_rows: dict[int, int], edit: Any) -> set[Any]:
    before, after = healthy(baseline), healthy(baseline)
    edit(after["spark1"])
    return bad(evaluate_after_load(baseline, after, before, engram_rows))


@pytest.mark.parametrize(
    ("edit", "checks"),
    [
        (lambda seen: None, set()),
        (change(["container_id"], "another"), {"identity.container"}),
        (change(["started_at"], "later"), {"identity.container"}),
        (change(["log_bytes_left_out"], 1), {"log.whole"}),
        (change(["log"], lambda text: text.replace("packed=True", "packed=False")), PACKED_LOST),
        (change(["log"], lambda text: text + "\n[wo_a_w8] calls twin=3 dense=1"), {"evidence.wo_a.present"}),
    ],
    ids=["nothing", "replaced", "restarted", "log-cut", "fell-back", "feature-acted"],
)
def test_what_changed_under_load_is_found_on_its_rank(
    baseline: Resolution, healthy: Healthy, engram_rows: dict[int, int], edit: Any, checks: set[str]
) -> None:
    assert after_load(baseline, healthy, engram_rows, edit) == {(f"after_load.{check}", 1) for check in checks}


def test_a_rank_that_is_gone_after_the_load_fails(
    baseline: Resolution, healthy: Healthy, engram_rows: dict[int, int]
) -> None:
    after: dict[str, Any] = {**healthy(baseline), "spark2": None}
    results = bad(evaluate_after_load(baseline, after, healthy(baseline), engram_rows))
    assert {rank for _, rank in results} == {2}
    assert ("after_load.identity.container", 2) in results


DECODE = (
    "[2026-09-25 10:00:00 TP0] Decode batch, #running-req: 1, #token: 64, token usage: 0.01, accept len: {length:.2f}, "
    "accept rate: 0.41, cuda graph: True, gen throughput (token/s): 31.20, #queue-req: 0\n"
)


@pytest.mark.parametrize(
    ("bands", "before", "lengths", "ok", "shown"),
    [
        ([], [], [1.0], False, "1.00"),  # fluent text, broken draft
        ([], [], [1.19], False, "1.19"),
        ([], [], [1.2], True, "1.20"),
        ([[0.5, 6.0]], [], [1.1], False, "1.10"),
        ([], [2.0], [], None, ""),
        ([[1.5, 6.0]], [], [1.0, 1.0], False, "1.00, the mean of 2 decode lines"),
        ([[1.5, 6.0]], [], [1.9, 2.3], True, "2.10"),
        ([[1.5, 6.0]], [1.0, 1.0, 1.0], [1.9], True, "1.90"),  # the canary's own lines take no part
        ([[1.5, 6.0]], [4.0, 4.0, 4.0], [1.0], False, "1.00"),
        ([[1.5, 6.0]], [2.0], [], False, "no decode line"),
        ([[1.5, 6.0], [2.5, 4.0]], [], [2.0], False, "2.00"),
    ],
    ids=[
        *("no-band-broken-draft", "below-the-floor", "at-the-floor", "floor-inside-the-band", "no-band-nothing-seen"),
        "broken-draft",
        *("healthy", "canary-low", "canary-high", "nothing-seen", "two-bands"),
    ],
)
def test_the_accept_length_of_the_measurement_lies_in_the_bands(
    baseline: Resolution,
    healthy: Healthy,
    engram_rows: dict[int, int],
    bands: list[list[float]],
    before: list[float],
    lengths: list[float],
    ok: bool | None,
    shown: str,
) -> None:
    gates = {**baseline.resolved["gates"], "accept_bands": bands}
    judged = replace(baseline, resolved={**baseline.resolved, "gates": gates})
    earlier, after = healthy(baseline), healthy(baseline)
    earlier["spark0"]["log"] += "".join(DECODE.format(length=length) for length in before)
    after["spark0"]["log"] += "".join(DECODE.format(length=length) for length in [*before, *lengths])
    results = evaluate_after_load(judged, after, earlier, engram_rows)
    found = [result for result in results if result.check_id == "after_load.accept_length"]
    assert [(result.rank, result.ok) for result in found] == ([] if ok is None else [(0, ok)])
    assert all(shown in result.observed for result in found)
    assert failed(results) == [result for result in found if not result.ok]


def test_bands_of_the_accept_length_come_from_the_features_that_a_configuration_holds(catalog: Catalog) -> None:
    shipped = dict(catalog.baseline)
    tried = {**shipped, **catalog.sets_of("wo_a")}
    assert catalog.accept_bands(shipped, "sglang") == ()
    assert catalog.accept_bands(tried, "sglang") == ((1.5, 6.0),)
    assert catalog.accept_bands(tried, "lab") == ()


def through_the_agent(resolution: Resolution, text: str) -> dict[str, Any]:
    """What the agent hands out of a log for the patterns of a plan."""
    request = LogRequest.parse(Fields({"patterns": judged_patterns(resolution)}, "request"))
    return view([text.encode()], request, TextRedactor([]))


def chatter(megabytes: int) -> str:
    return "[2026-09-25 10:00:00 TP0] Prefill batch, #new-seq: 1, #new-token: 64, #queue-req: 0\n" * (
        megabytes * 12_000
    )


def test_a_long_log_is_judged_whole(
    baseline: Resolution, healthy: Healthy, canary: dict[str, Any], engram_rows: dict[int, int]
) -> None:
    """The lines that are judged stand anywhere in several megabytes of others; gates and record need no more."""
    seen = healthy(baseline)
    for rank in range(3):
        lines = seen[f"spark{rank}"]["log"].splitlines(keepends=True)
        long = chatter(2) + "".join(lines[:4]) + chatter(2) + "".join(lines[4:])
        seen[f"spark{rank}"].update(through_the_agent(baseline, long))
        assert seen[f"spark{rank}"]["log_size"] > 4_000_000
    assert failed(evaluate(baseline, seen, canary, engram_rows)) == []
    whole = next(r for r in evaluate(baseline, seen, canary, engram_rows) if r.check_id == "log.whole")
    assert str(seen["spark0"]["log_size"]) in whole.observed


def test_a_line_that_must_not_be_there_is_found_in_the_middle_of_a_long_log(
    baseline: Resolution, healthy: Healthy, canary: dict[str, Any], engram_rows: dict[int, int]
) -> None:
    seen = healthy(baseline)
    long = seen["spark1"]["log"] + chatter(2) + "[wo_a_w8] calls twin=3 dense=0\n" + chatter(2)
    seen["spark1"].update(through_the_agent(baseline, long))
    assert bad(evaluate(baseline, seen, canary, engram_rows)) == {("evidence.wo_a.present", 1)}


def test_judged_lines_that_do_not_fit_are_a_failure_with_a_way_on(
    baseline: Resolution, healthy: Healthy, canary: dict[str, Any], engram_rows: dict[int, int]
) -> None:
    seen = healthy(baseline)
    counter = next(line for line in seen["spark2"]["log"].splitlines(keepends=True) if "hit_rate" in line)
    seen["spark2"].update(through_the_agent(baseline, seen["spark2"]["log"] + counter * 20_000))
    (result,) = (
        each for each in evaluate(baseline, seen, canary, engram_rows) if each.check_id == "log.whole" and not each.ok
    )
    assert result.rank == 2
    assert "boot again" in result.line()


def test_the_agent_takes_every_pattern_of_the_catalog(catalog: Catalog) -> None:
    patterns = [*READ, *(entry.pattern for entry in catalog.evidence.values())]
    assert len(patterns) <= log_patterns.MAX_PATTERNS
    assert max(map(len, patterns)) < log_patterns.MAX_PATTERN_CHARACTERS * 0.9  # values are filled in


def test_candidate_needs_its_evidence(
    candidate: Resolution, healthy: Healthy, canary: dict[str, Any], engram_rows: dict[int, int]
) -> None:
    assert failed(evaluate(candidate, healthy(candidate, wo_a=True), canary, engram_rows)) == []
    silent = evaluate(candidate, healthy(candidate), canary, engram_rows)
    assert bad(silent) == {(f"evidence.wo_a.{name}", rank) for name in ("twins", "calls") for rank in range(3)}


@pytest.mark.parametrize(
    ("old", "new", "checks"),
    [
        ("calls twin=24", "calls twin=0", {"evidence.wo_a.calls"}),
        (
            "twins for 4 wo_a weights, 0 left",
            "twins for 3 wo_a weights, 1 left",
            {"evidence.wo_a.twins", "evidence.wo_a.left"},
        ),
        ("twins for 4", "twins for 0", {"evidence.wo_a.twins"}),
    ],
)
def test_half_working_candidate_fails(
    candidate: Resolution,
    healthy: Healthy,
    canary: dict[str, Any],
    engram_rows: dict[int, int],
    old: str,
    new: str,
    checks: set[str],
) -> None:
    seen = healthy(candidate, wo_a=True)
    log(old, new)(seen["spark1"])
    assert bad(evaluate(candidate, seen, canary, engram_rows)) == {(check, 1) for check in checks}


def test_baseline_must_not_show_the_feature(
    baseline: Resolution, healthy: Healthy, canary: dict[str, Any], engram_rows: dict[int, int]
) -> None:
    results = evaluate(baseline, healthy(baseline, wo_a=True), canary, engram_rows)
    assert bad(results) == {("evidence.wo_a.present", rank) for rank in range(3)}


@pytest.mark.parametrize(
    ("counters", "ok"),
    [
        ("lookups=160 hit_rate=25.0% reads=120", True),
        ("lookups=160 hit_rate=25.0% reads=121", True),  # within what one decimal of the share allows
        ("lookups=160 hit_rate=25.0% reads=160", False),
        ("lookups=160 hit_rate=25.0% reads=120 hits=40", True),
        ("lookups=160 hit_rate=25.0% reads=121 hits=40", False),
        ("lookups=160 hit_rate=25.0% reads=240 hits=40", False),
    ],
)
def test_cache_hits_cost_no_reads(
    site: Site,
    catalog: Catalog,
    project: Path,
    healthy: Healthy,
    canary: dict[str, Any],
    engram_rows: dict[int, int],
    counters: str,
    ok: bool,
) -> None:
    cached = resolve(site, catalog, None, {"DSV41_CACHE_GIB": "0.001"}, project)
    seen = healthy(cached)
    text, _, hits = counters.partition(" hits=")
    log("lookups=160 hit_rate=0.0% reads=160", text)(seen["spark1"])
    if hits:
        log("threads=96 packed=True\n", f"threads=96 packed=True hits={hits}\n")(seen["spark1"])
    assert bad(evaluate(cached, seen, canary, engram_rows)) == (set() if ok else {("engram.reads", 1)})


def test_rows_are_those_of_the_verified_shards_whatever_divides_them(
    baseline: Resolution, healthy: Healthy, canary: dict[str, Any], engram_rows: dict[int, int]
) -> None:
    """By the column layout a rank owns other rows; the engine must say the same, else its shards are not its own."""
    parts = len(baseline.nodes)
    even = {
        node: {layer: (rows * rank // parts, rows * (rank + 1) // parts) for layer, rows in engram_rows.items()}
        for rank, node in baseline.nodes.items()
    }
    assert failed(evaluate(baseline, healthy(baseline), canary, engram_rows, owned=even)) == []
    node = baseline.nodes[1]
    other = {**even, node: {layer: (first + 1, end) for layer, (first, end) in even[node].items()}}
    (result,) = failed(evaluate(baseline, healthy(baseline), canary, engram_rows, owned=other))
    assert (result.check_id, result.rank) == ("engram.rows", 1)
    none = {name: rows for name, rows in even.items() if name != node}
    (result,) = failed(evaluate(baseline, healthy(baseline), canary, engram_rows, owned=none))
    assert (result.check_id, result.rank) == ("engram.rows", 1)
