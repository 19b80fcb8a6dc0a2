"""In-boot rounds on the controller: what is refused, one number a boot, and what is said over boots."""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trispark.catalog import Catalog, load_catalog
from trispark.catalog_check import check_references
from trispark.errors import TrisparkError
from trispark.rounds import WORDS, RoundsPlan, effects_of, plan_rounds
from trispark.rounds_kept import (
    RoundsOfBoot,
    judge_rounds,
    keep_rounds,
    kept_rounds,
    play_failure,
    rounds_directory,
    screen,
)
from trispark_bench.plan import BenchPlan
from trispark_bench.rounds import CODES, ORDER
from trispark_bench.rounds import RoundsPlan as ClientPlan

ROOT = Path(__file__).resolve().parents[3]
TIME = "2026-01-02T03:04:05Z"
ON = {"DSV41_ENGRAM_PREFETCH": 1, "DSV41_CACHE_GIB": 0.25}


@pytest.fixture
def root(tmp_path: Path, make_site: Callable[..., Path]) -> Path:
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    (tmp_path / "inventory").mkdir()
    shutil.move(make_site(), tmp_path / "inventory" / "lab")
    return tmp_path


def running(catalog: Catalog, engine: str = "lab", **settings: Any) -> dict[str, Any]:
    return {
        "generation": "g0123456789abcdef",
        "serving": True,
        "nodes": {f"spark{rank}": {"rank": rank} for rank in range(3)},
        "resolved": {"engine": engine, "settings": {**catalog.baseline, **settings}},
    }


def statuses(*boots: str) -> dict[str, Any]:
    return {f"spark{rank}": {"engine": {"boot_id": boot}} for rank, boot in enumerate(boots)}


def planned(root: Path, catalog: Catalog, feature: str = "engram_prefetch", rounds: str = "8") -> RoundsPlan:
    return plan_rounds(root, "lab", running(catalog, **ON), statuses("b1", "b1", "b1"), feature, rounds)


def refused(call: Callable[[], object]) -> TrisparkError:
    with pytest.raises(TrisparkError) as caught:
        call()
    assert all(caught.value.as_dict().values()), "every field of an error line"
    assert "\n" not in str(caught.value)
    return caught.value


# -- the plan


@pytest.mark.parametrize("feature", ["engram_prefetch", "engram_cache"])
def test_the_client_can_read_what_is_planned(root: Path, catalog: Catalog, feature: str) -> None:
    plan = planned(root, catalog, feature)
    assert RoundsPlan.of(json.loads(json.dumps(plan.as_dict()))) == plan
    read = ClientPlan.from_json(json.loads(json.dumps(plan.request)))
    assert (read.switch, read.rounds, read.world, read.bench.concurrency) == (feature, 8, 3, (1,))
    assert read.bench.base_url == "http://127.0.0.1:8888", "an engine without a key obeys its own host alone"
    assert plan.as_dict()["rank"] == 0
    assert isinstance(read.bench, BenchPlan)


@pytest.mark.parametrize(
    ("feature", "settings", "engine", "boots", "rounds", "error_id"),
    [
        ("wo_a", ON, "lab", ("b1",) * 3, "8", "TS-ROUNDS-FEATURE"),
        ("block_size", ON, "lab", ("b1",) * 3, "8", "TS-ROUNDS-FEATURE"),
        ("no_such", ON, "lab", ("b1",) * 3, "8", "TS-FEATURE-UNKNOWN"),
        ("", ON, "lab", ("b1",) * 3, "8", "TS-FEATURE-UNKNOWN"),
        ("engram_prefetch", ON, "sglang", ("b1",) * 3, "8", "TS-ROUNDS-ENGINE"),
        ("engram_cache", ON, "sglang", ("b1",) * 3, "8", "TS-ROUNDS-ENGINE"),
        ("engram_prefetch", {}, "lab", ("b1",) * 3, "8", "TS-ROUNDS-OFF"),
        ("engram_cache", {}, "lab", ("b1",) * 3, "8", "TS-ROUNDS-OFF"),
        ("engram_prefetch", ON, "lab", ("b1", "b1", "b2"), "8", "TS-ROUNDS-BOOT"),
        ("engram_prefetch", ON, "lab", ("b1",) * 3, "7", "TS-ROUNDS-COUNT"),
        ("engram_prefetch", ON, "lab", ("b1",) * 3, "65", "TS-ROUNDS-COUNT"),
        ("engram_prefetch", ON, "lab", ("b1",) * 3, "\u0668", "TS-ROUNDS-COUNT"),
        ("engram_prefetch", ON, "lab", ("b1",) * 3, "", "TS-ROUNDS-COUNT"),
    ],
)
def test_what_cannot_be_switched_is_refused_before_anything_is_sent(
    root: Path, catalog: Catalog, feature: str, settings: Any, engine: str, boots: Any, rounds: str, error_id: str
) -> None:
    found = running(catalog, engine, **settings)
    error = refused(lambda: plan_rounds(root, "lab", found, statuses(*boots), feature, rounds))
    assert error.id == error_id
    if engine == "sglang":
        assert f"no adapter of the engine sglang acknowledges a switch of {feature} yet" in error.what


def measures(root: Path, **bench: Any) -> None:
    """Give the site another measurement."""
    path = root / "inventory/lab/group_vars/all/site.yml"
    site = yaml.safe_load(path.read_text())
    site["site_bench"] |= {"repetitions": 1, "concurrency": [1], **bench}
    path.write_text(yaml.safe_dump(site))


def test_an_order_holds_through_the_longest_pass(root: Path, catalog: Catalog) -> None:
    measures(root, max_tokens=512, workloads=["prose", "code", "structured", "chat"])
    plan = planned(root, catalog)
    assert plan.request["hold_s"] == pytest.approx(30 + 4 * (1 + 512 / 5))
    assert plan.as_dict()["deadline_s"] == plan.request["bench"]["deadline_s"] + 90
    ClientPlan.from_json(json.loads(json.dumps(plan.request)))
    measures(root, max_tokens=1024, workloads=["prose", "code", "structured", "chat"])
    error = refused(lambda: planned(root, catalog))
    assert (error.id, error.expected) == ("TS-ROUNDS-PASS", "at most 600 s at 5 tokens a second")


def test_so_many_rounds_that_the_agent_would_refuse_their_deadline_are_refused(root: Path, catalog: Catalog) -> None:
    measures(root, max_tokens=512, workloads=["prose", "code", "structured", "chat"])
    error = refused(lambda: planned(root, catalog, rounds="64"))
    assert error.id == "TS-ROUNDS-COUNT"
    most = int(error.remedy.removeprefix("--rounds "))
    assert planned(root, catalog, rounds=str(most)).as_dict()["deadline_s"] <= 86400
    assert refused(lambda: planned(root, catalog, rounds=str(most + 1))).id == "TS-ROUNDS-COUNT"


def test_an_engine_that_does_not_serve_is_refused(root: Path, catalog: Catalog) -> None:
    found = {**running(catalog, **ON), "serving": False}
    error = refused(lambda: plan_rounds(root, "lab", found, statuses("b1", "b1", "b1"), "engram_prefetch", "8"))
    assert error.id == "TS-ROUNDS-BOOT"


# -- the catalog


def test_only_switches_of_the_lab_are_in_boot(catalog: Catalog) -> None:
    names = sorted(name for name, entry in catalog.features.items() if entry.in_boot)
    assert names == ["engram_cache", "engram_prefetch"]
    assert {name: sorted(engine.switches) for name, engine in catalog.engines.items()} == {"lab": names, "sglang": []}


def test_catalog_and_engines_must_agree(catalog: Catalog) -> None:
    lab = catalog.engines["lab"].model_copy(update={"switches": (*catalog.engines["lab"].switches, "wo_a")})
    error = refused(lambda: check_references(replace(catalog, engines={**catalog.engines, "lab": lab})))
    assert (error.id, error.observed) == ("TS-CATALOG-REFERENCE", "wo_a")


def test_the_lab_engine_has_the_switches_that_the_catalog_says() -> None:
    """Names in two places, the engine's code and engines.yml."""
    text = "".join(
        (ROOT / path).read_text(encoding="utf-8")
        for path in ("lab/trispark_lab/row_store.py", "adapters/trispark_hooks/lab_engram_prefetch.py")
    )
    for name in load_catalog(ROOT).engines["lab"].switches:
        assert f'"{name}"' in text


# -- one number a boot


def output(gain: float = 0.02, rounds: int = 8, drift: float = 0.01, workloads: Any = ("prose", "code")) -> Any:
    """What the client would write: rates that drift through the passes, and are higher while the switch is on."""
    passes = []
    for index in range(rounds + 1):
        for place, on in ORDER:
            number = len(passes)
            requests = []
            for base, workload in zip((40.0, 55.0), workloads, strict=False):
                rate = base * math.exp(drift * number + (gain if on else 0.0) + (9.0 if index == 0 and on else 0.0))
                requests.append(
                    {
                        "tag": f"rounds-{workload}",
                        "workload": workload,
                        "ttft_s": 0.25,
                        "total_s": 0.25 + 63 / rate,
                        "completion_tokens": 64,
                        "first_tokens": 1,
                        "error": None,
                    }
                )
            passes.append({"round": index, "place": place, "on": on, "epoch": number + 1, "requests": requests})
    return {
        "passes": passes,
        "identity": [{"startup_time": 3.5}] * 2,
        "restored": {"on": True, "declared": True, "epoch": 99, "verified": True, "why": ""},
        "ended": None,
    }


@given(gain=st.floats(-0.2, 0.2), drift=st.floats(-0.02, 0.02))
def test_a_steady_drift_and_the_first_round_do_not_move_the_number(gain: float, drift: float) -> None:
    plan = RoundsPlan("lab", "x", "g", "b1", "lab", "i", {"rounds": 8, "bench": {}})
    found = effects_of(plan, output(gain, drift=drift))
    assert len(found) == 8
    assert found == pytest.approx([gain] * 8, abs=1e-9)


@pytest.mark.parametrize(
    ("change", "error_id"),
    [
        (lambda out: out["passes"].pop(), "TS-ROUNDS-INCOMPLETE"),
        (lambda out: out["passes"].reverse(), "TS-ROUNDS-INCOMPLETE"),
        (lambda out: out["passes"][5].update(on=False), "TS-ROUNDS-INCOMPLETE"),
        (lambda out: out["passes"][5]["requests"].pop(), "TS-ROUNDS-INCOMPLETE"),
        (lambda out: out["passes"][5]["requests"][0].update(total_s=None), "TS-ROUNDS-INCOMPLETE"),
        (lambda out: out.update(identity=[{"startup_time": 1}, {"startup_time": 2}]), "TS-ROUNDS-INCOMPLETE"),
        (lambda out: out.update(identity=[{}]), "TS-ROUNDS-INCOMPLETE"),
        (lambda out: out["restored"].update(verified=False, why="gone"), "TS-ROUNDS-RESTORE"),
        *[
            (lambda out, code=code: out.update(ended={"code": code, "what": "seen"}), WORDS[code].error_id)
            for code in CODES
        ],
    ],
)
def test_rounds_that_do_not_count(root: Path, catalog: Catalog, change: Any, error_id: str) -> None:
    found = output()
    change(found)
    plan = planned(root, catalog)
    assert refused(lambda: effects_of(plan, found)).id == error_id
    judge_rounds(root, plan, output(0.03), TIME)
    judged = judge_rounds(root, plan, found, TIME)
    assert judged["failure_line"].startswith(f"{error_id}:")
    assert judged["lines"] == [judged["failure_line"]]
    (path,) = rounds_directory(root, "lab").iterdir()
    kept = json.loads(path.read_text())
    assert kept["ended"] == {"id": error_id, "line": judged["failure_line"]}, "in place of the earlier number"
    assert (kept["output"], kept["log_ratio"], kept["rounds"]) == (found, None, [])
    assert (kept["different"] is None) is (error_id != "TS-ROUNDS-DIFFERENT")
    others = judge_rounds(root, replace(plan, running="b2"), output(0.03), TIME)
    assert others["published"]["rounds"]["screening"]["boots"] == 1, "such a boot counts for nothing"


def test_a_switch_that_is_not_back_is_said_before_all_else(root: Path, catalog: Catalog) -> None:
    plan, found = planned(root, catalog), output()
    found.update(ended={"code": "difference", "what": "another text"})
    found["restored"].update(verified=False, why="the engine is gone")
    error = refused(lambda: effects_of(plan, found))
    assert (error.id, error.observed) == ("TS-ROUNDS-RESTORE", "the engine is gone; another text")
    assert f"wait {plan.request['hold_s']:g} s" in error.remedy
    judge_rounds(root, plan, found, TIME)
    other = judge_rounds(root, replace(plan, running="b2"), output(0.03), TIME)
    assert "TS-ROUNDS-DIFFERENT" in other["lines"][1], "the difference is kept, too"


def test_a_difference_in_one_boot_is_said_in_place_of_worth_a_trial(root: Path, catalog: Catalog) -> None:
    plan = planned(root, catalog)
    for boot in ("b1", "b2", "b3"):
        last = judge_rounds(root, replace(plan, running=boot), output(0.03), TIME)
    assert "worth a trial" in last["lines"][1]
    changed = output()
    changed.update(ended={"code": "difference", "what": "another text"})
    judge_rounds(root, replace(plan, running="b1"), changed, TIME)
    for boot, boots in (("b2", 2), ("b1", 3)):  # also after rounds of that very boot which saw none
        last = judge_rounds(root, replace(plan, running=boot), output(0.03), TIME)
        assert last["published"]["rounds"]["screening"]["boots"] == boots
        assert "the switch changed the output in b1 (TS-ROUNDS-DIFFERENT)" in last["lines"][1]
        assert "worth a trial" not in last["lines"][1]
    for change in (replace(plan, running="b9", generation="g1"), planned(root, catalog, "engram_cache")):
        assert "DIFFERENT" not in judge_rounds(root, change, output(0.03), TIME)["lines"][1]


def test_rounds_whose_gates_failed_count_for_nothing(root: Path, catalog: Catalog) -> None:
    plan = planned(root, catalog)
    judged = judge_rounds(root, plan, output(0.03), TIME, "after_load.engram.reads: failed")
    assert judged["failure_line"] == "after_load.engram.reads: failed"
    assert judged["published"]["rounds"]["ended"]["id"] == "TS-ROUNDS-GATES"
    ended = output()
    ended.update(ended={"code": "traffic", "what": "foreign"})
    judged = judge_rounds(root, plan, ended, TIME, "after_load.engram.reads: failed")
    assert judged["failure_line"] == "after_load.engram.reads: failed"
    assert judged["lines"][0].startswith("TS-ROUNDS-TRAFFIC:"), "why the rounds ended is not hidden"


def test_the_cause_in_the_playbook_is_said_before_what_followed_from_it() -> None:
    followed = {"failure": {"task": "t", "result": {"msg": "boot.ranks: not every rank"}}}
    cause = {"failure": {"task": "t", "result": {"msg": "TS-BENCH-RUN: the load\nclient failed"}}}
    assert play_failure({"a": followed, "b": cause, "c": {}}, ["a"]) == "TS-BENCH-RUN: the load client failed"
    assert play_failure({"a": followed}, []).startswith("boot.ranks:")
    assert play_failure({"a": {"failure": {"task": "Observe", "result": {}}}}, []) == "Observe failed"
    assert play_failure({"a": {"failure": {}}}, ["b"]) == "not reached after the rounds: b"
    assert play_failure({"a": {"failure": {}}}, []) == ""


# -- over boots


def of_boot(boot: str, log_ratio: float, time: str = TIME) -> RoundsOfBoot:
    return RoundsOfBoot("lab", "x", "g", boot, time, "w", (log_ratio,) * 8, log_ratio)


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ([0.05], "one boot says nothing"),
        ([0.05, 0.0501], "worth a trial"),
        ([0.05, -0.05], "no difference shown"),
        ([0.004, 0.0041], "less than a trial would keep"),
        ([-0.05, -0.0501], "slower while it is on"),
        ([0.0, 0.0], "no difference shown"),
    ],
)
def test_what_is_said_over_boots_is_never_a_verdict(numbers: list[float], says: str) -> None:
    found = screen([of_boot(f"b{index}", number) for index, number in enumerate(numbers)])
    assert says in found.says
    assert not any(word in found.line() for word in ("KEEP", "REJECT"))
    assert (found.low is None) is (len(numbers) < 2)


def test_the_boot_is_the_unit_however_often_its_rounds_were_repeated() -> None:
    again = [of_boot("b1", 0.05, f"2026-01-0{day}T00:00:00Z") for day in range(1, 9)]
    assert (screen(again).boots, screen(again).low) == (1, None)
    newest = screen([*again, of_boot("b1", 0.01, "2026-02-01T00:00:00Z"), of_boot("b2", 0.03)])
    assert (newest.boots, newest.log_ratio) == (2, pytest.approx(0.02))
    wide, narrow = (
        screen([of_boot("b1", 0.02), of_boot("b2", 0.04)]),
        screen([of_boot(f"b{n}", 0.03) for n in range(4)]),
    )
    assert wide.low is not None
    assert wide.low < 0.03 - 12.7 * 0.01 + 1e-3, "t of one degree of freedom"
    assert narrow.low == pytest.approx(0.03)


def test_boots_are_kept_and_only_like_ones_are_put_together(root: Path, catalog: Catalog) -> None:
    plan = planned(root, catalog)
    first = judge_rounds(root, plan, output(0.03), TIME)
    assert "1 boot:" in first["lines"][1]
    assert first["lines"][2].startswith("engram_prefetch is on again on every rank (epoch 99)")
    second = judge_rounds(root, replace(plan, running="b2"), output(0.031), TIME)
    assert second["published"]["rounds"]["screening"]["boots"] == 2
    assert "worth a trial" in second["lines"][1]
    other = copy.deepcopy(plan.as_dict())
    other["request"]["bench"]["max_tokens"] += 1
    for change in (replace(plan, running="b3", generation="g1"), replace(RoundsPlan.of(other), running="b4")):
        assert judge_rounds(root, change, output(0.5), TIME)["published"]["rounds"]["screening"]["boots"] == 1
    directory = rounds_directory(root, "lab")
    (directory / "b5-engram_prefetch.json").write_text("{")
    (directory / "b6-engram_prefetch.json").write_text('{"schema_version": 2}')
    like = RoundsOfBoot.judged(plan, output(0.03), TIME)
    assert [each.boot for each in kept_rounds(root, like)] == ["b1", "b2"]
    kept = json.loads(keep_rounds(root, like, output(0.03)).read_text())
    assert len(kept["output"]["passes"]) == 36, "all that was measured"
