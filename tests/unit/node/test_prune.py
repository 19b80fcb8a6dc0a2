"""Pruning removes what is old, never a way back; at every interruption what is left is whole or is not there."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trispark_node import generations, pulled
from trispark_node.canonical import canonical_json, sha256_hex
from trispark_node.cli import answer
from trispark_node.docker_client import Image

OTHER = "registry:5000/trispark/old@sha256:" + "c" * 64
BENCH_IMAGE = "registry:5000/trispark/bench@sha256:" + "d" * 64


@pytest.fixture
def fleet(bench, stage_request):
    return History(bench, stage_request)


class History:
    """A node with a past: generations g[0] (the oldest) and on, each with a record of its boot and its kept log."""

    def __init__(self, bench, stage_request):
        self.bench, self.stage = bench, stage_request
        self.g: list[str] = []
        self.head = None

    def boots(self, count, **requested):
        for _ in range(count):
            number = len(self.g)
            request = self.stage(f"tag{number}")
            self.bench.ask("stage", **request)
            self.g.append(request["generation"])
            self.record(self.g[-1], f"b{number}", **requested)
            log = self.bench.node.layout.boot_log(f"b{number}")
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("log\n")
            os.utime(log.parent, ns=(number, number))
        return self.g

    def record(self, generation, boot_id, state="valid", **requested):
        seq = self.head["seq"] + 1 if self.head else 1
        previous = {"seq": self.head["seq"], "hash": self.head["hash"]} if self.head else None
        record = {
            "id": f"r{seq}", "seq": seq, "previous": previous, "kind": "boot", "boot_id": boot_id,
            "requested": {"arm": "candidate", "purpose": "trial", **requested},
            "resolved": {"generation": generation}, "outcome": {"state": state},
        }  # fmt: skip
        self.bench.ask("record-append", record=record, previous=previous)
        self.head = {"seq": seq, "hash": sha256_hex(canonical_json(record))}
        return record

    def staged(self):
        return [self.g.index(name) for name in self.g if self.bench.node.layout.generation(name).is_dir()]

    def good(self, number):
        self.bench.ask("good-mark", generation=self.g[number], boot_id=f"b{number}", time="t")


def test_the_newest_stay_by_their_last_boot(bench, fleet):
    fleet.boots(6)
    fleet.record(fleet.g[0], "b0-again")
    said = bench.ask("prune", keep=3)
    assert fleet.staged() == [0, 4, 5]
    assert said["generations"]["removed"] == sorted(fleet.g[1:4])
    assert said["line"].startswith("3 generations, 0 boots' logs and 0 images go; 3 generations")
    assert not bench.ask("prune", keep=3)["changed"]


def test_one_that_was_never_booted_is_the_newest(bench, fleet, stage_request):
    fleet.boots(3)
    new = stage_request("fresh")
    bench.ask("stage", **new)
    os.utime(bench.node.layout.generation(new["generation"]), ns=(1, 1))
    bench.ask("prune", keep=1)
    assert generations.staged(bench.node) == [new["generation"]]


def protect_current(bench, fleet):
    bench.ask("activate", generation=fleet.g[0])


def protect_rollback(bench, fleet):
    bench.node.layout.rollback.write_text(json.dumps({"target": fleet.g[0], "epoch": 3, "missing": ["spark2"]}))


def protect_container(bench, fleet):
    bench.docker.add("trispark-engine", "exited", {**LABELS, "trispark.generation": fleet.g[0]})


def protect_shipped_baseline(bench, fleet):
    fleet.record(fleet.g[0], "b0-served", arm="baseline", purpose="serve")
    for number in range(1, 6):
        fleet.record(fleet.g[number], f"b{number}-after", arm="baseline", purpose="trial")


def protect_promoted_baseline(bench, fleet):
    record = fleet.record("", "t1")
    record.update(
        id="trial", seq=fleet.head["seq"] + 1, previous=dict(fleet.head), kind="trial",
        resolved={"baseline": "g" + "0" * 16, "candidate": fleet.g[0]},
    )  # fmt: skip
    bench.ask("record-append", record=record, previous=record["previous"])
    kept = {
        "schema_version": 1, "settings": {"DSPARK_BLOCK_SIZE": 5}, "record": "trial",
        "record_hash": sha256_hex(canonical_json(record)), "time": "t",
    }  # fmt: skip
    bench.ask("baseline-set", baseline=kept)


def protect_pending(bench, fleet):
    bench.node.journal.append("activate", "intent", {"from": fleet.g[0], "to": fleet.g[5]})


PROTECT = {
    "current": protect_current,
    "the last good": lambda bench, fleet: fleet.good(0),
    "the good one before it": lambda bench, fleet: (fleet.good(0), fleet.good(5), fleet.good(5)),
    "a rollback's target": protect_rollback,
    "a container's": protect_container,
    "the shipped baseline's": protect_shipped_baseline,
    "the promoted baseline's": protect_promoted_baseline,
    "of what is pending": protect_pending,
}
LABELS = {
    "trispark": "1", "trispark.role": "engine", "trispark.boot": "b0", "trispark.epoch": "1", "trispark.rank": "1",
}  # fmt: skip


@pytest.mark.parametrize("why", PROTECT)
def test_a_way_back_is_never_removed(bench, fleet, why):
    fleet.boots(6)
    PROTECT[why](bench, fleet)
    bench.ask("prune", keep=1)
    assert 0 in fleet.staged()
    assert len(fleet.staged()) < 6


UNREADABLE = {
    "current": lambda layout: layout.current.write_text("no link"),
    "good": lambda layout: layout.good.write_text("no mark\n"),
    "baseline": lambda layout: layout.baseline.write_text("{"),
    "rollback": lambda layout: layout.rollback.write_text("{"),
    "rollback without a target": lambda layout: layout.rollback.write_text("{}"),
    "site": lambda layout: layout.site.write_text("{"),
    "records": lambda layout: next(layout.records.iterdir()).write_text("{}\n"),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_nothing_is_removed_while_a_way_back_cannot_be_read(bench, fleet, what):
    fleet.boots(4)
    UNREADABLE[what](bench.node.layout)
    before = bench.tree()
    assert bench.refused("prune", keep=1)["id"] in ("TS-AGENT-DAMAGED", "TS-RECORD-CHAIN")
    assert bench.tree() == before


def test_check_mode_says_the_same_and_changes_nothing(bench, fleet):
    fleet.boots(4)
    bench.know_site(keep_boots=1)
    before = bench.tree()
    said = bench.ask("prune", keep=2, check=True)
    assert bench.tree() == before
    done = bench.ask("prune", keep=2)
    assert {key: said[key] for key in ("generations", "boots", "images", "line", "diff")} == {
        key: done[key] for key in ("generations", "boots", "images", "line", "diff")
    }
    assert done["changed"]


@pytest.mark.parametrize("bad", [{"keep": 0}, {"keep": "5"}, {"keep": -1}, {"images": "yes"}, {"kept": 3}])
def test_a_bad_request_removes_nothing(bench, fleet, bad):
    fleet.boots(3)
    before = bench.tree()
    assert bench.refused("prune", **bad)["id"] == "TS-AGENT-REQUEST"
    assert bench.tree() == before


def test_the_sites_numbers_and_the_state_of_what_went(bench, fleet):
    fleet.boots(5)
    bench.know_site(keep_generations=2, keep_boots=3)
    for name in fleet.g:
        (bench.node.layout.engine_state(name) / "state").mkdir(parents=True)
    said = bench.ask("prune")
    assert fleet.staged() == [3, 4]
    assert sorted(path.name for path in bench.node.layout.engine_states.iterdir()) == sorted(fleet.g[3:])
    assert (said["boots"]["removed"], said["boots"]["kept"]) == (["b0", "b1"], 3)
    assert sorted(path.name for path in bench.node.layout.boots.iterdir()) == ["b2", "b3", "b4"]


def test_the_log_of_a_boot_whose_container_is_there_stays(bench, fleet):
    fleet.boots(5)
    bench.know_site(keep_boots=2)
    bench.docker.add("trispark-engine", "exited", {**LABELS, "trispark.generation": fleet.g[0]})
    assert bench.ask("prune")["boots"]["removed"] == ["b1", "b2"]
    assert bench.node.layout.boot_log("b0").exists()


def test_what_is_not_ours_by_name_stays(bench, fleet):
    fleet.boots(3)
    bench.know_site(keep_boots=1)
    notes = bench.node.layout.generations / "notes"
    notes.mkdir()
    link = bench.node.layout.boots / "elsewhere"
    link.symlink_to(bench.root)
    bench.ask("prune", keep=1)
    assert notes.is_dir()
    assert link.is_symlink()
    assert fleet.staged() == [2]


# --- images ---------------------------------------------------------------------------------------------------------


def pull(bench, reference):
    bench.docker.registry[reference] = Image("sha256:" + reference[-64:], (reference,), {})
    assert bench.ask("image-ensure", image=reference)["pulled"]


def test_only_images_that_the_agent_pulled_and_nothing_needs(bench, fleet):
    fleet.boots(1)
    bench.docker.images["busybox"] = Image("sha256:0", (), {})
    pull(bench, OTHER)
    pull(bench, BENCH_IMAGE)
    bench.know_site(images=[BENCH_IMAGE])
    assert bench.ask("prune")["images"] == {"removed": [], "kept": {}}, "images go only when it is asked for"
    said = bench.ask("prune", images=True)
    assert said["images"] == {"removed": [OTHER], "kept": {BENCH_IMAGE: "the site's"}}
    assert OTHER not in bench.docker.images
    assert "busybox" in bench.docker.images
    assert pulled.read(bench.node) == [BENCH_IMAGE]
    assert not bench.ask("prune", images=True)["changed"]


def test_an_image_that_the_site_names_otherwise_than_it_was_pulled_stays(bench):
    """With its reference the image would go: both are one name to Docker."""
    digest = OTHER.partition("@")[2]
    pulled = f"docker.io/lmsysorg/sglang@{digest}"
    bench.docker.registry[pulled] = Image("sha256:9", (f"lmsysorg/sglang@{digest}",), {})
    assert bench.ask("image-ensure", image=pulled)["pulled"]
    bench.know_site(images=[f"lmsysorg/sglang@{digest}"])
    assert bench.ask("prune", images=True)["images"] == {"removed": [], "kept": {pulled: "the site's"}}


def test_an_image_of_a_kept_generation_stays_and_goes_with_it(bench, stage_request):
    pull(bench, OTHER)
    old = stage_request("old", image=OTHER)
    bench.ask("stage", **old)
    assert bench.ask("prune", images=True)["images"]["kept"] == {OTHER: f"generation {old['generation']}"}
    bench.docker.remove_image(OTHER)
    bench.docker.images[OTHER] = bench.docker.registry[OTHER]
    new = stage_request("new")
    bench.ask("stage", **new)
    os.utime(bench.node.layout.generation(old["generation"]), ns=(1, 1))
    assert bench.ask("prune", keep=1, images=True)["images"]["removed"] == [OTHER]


def test_an_image_of_any_container_stays(bench):
    pull(bench, OTHER)
    container_id = bench.docker.add("somebody", "exited")
    bench.docker.change(container_id, image_id=bench.docker.images[OTHER].id)
    said = bench.ask("prune", images=True)
    assert said["images"] == {"removed": [], "kept": {OTHER: "container somebody"}}


def test_what_the_engine_will_not_let_go_is_named(bench):
    pull(bench, OTHER)
    bench.docker.image_error = "conflict: image is being used by stopped container 0a1b"
    said = bench.ask("prune", images=True)
    assert said["images"] == {"removed": [], "kept": {OTHER: bench.docker.image_error}}
    assert pulled.read(bench.node) == [OTHER]


def test_a_damaged_list_removes_no_image_and_keeps_no_pull_from_working(bench):
    pull(bench, OTHER)
    bench.node.layout.pulled.write_text("{")
    assert bench.refused("prune", images=True)["id"] == "TS-AGENT-DAMAGED"
    pull(bench, BENCH_IMAGE)
    assert bench.node.layout.pulled.read_text() == "{"
    assert {OTHER, BENCH_IMAGE} <= set(bench.docker.images)


# --- interruptions --------------------------------------------------------------------------------------------------


def test_a_death_at_any_step_leaves_whole_generations_and_the_next_prune_ends_it(bench, fleet, crashes):
    fleet.boots(4)
    bench.know_site(keep_generations=1, keep_boots=2)
    bench.ask("activate", generation=fleet.g[1])
    layout = bench.node.layout
    requests = {name: fleet.stage(f"tag{number}") for number, name in enumerate(fleet.g)}

    def reset():
        for name, request in requests.items():
            bench.ask("stage", **request)
            layout.engine_state(name).mkdir(parents=True, exist_ok=True)
        for number in range(4):
            log = layout.boot_log(f"b{number}")
            log.parent.mkdir(exist_ok=True)
            log.write_text("log\n")
            os.utime(log.parent, ns=(number, number))

    for _ in crashes(lambda disk: answer(bench.with_disk(disk), "prune", "{}"), reset):
        assert generations.damaged(bench.node) == {}
        assert {fleet.g[1], fleet.g[3]} <= set(generations.staged(bench.node)), "what stays was never touched"
        bench.ask("prune")
        assert sorted(path.name for path in layout.generations.iterdir()) == sorted([fleet.g[1], fleet.g[3]])
        assert sorted(path.name for path in layout.boots.iterdir()) == ["b2", "b3"]
        assert {path.name for path in layout.engine_states.iterdir()} <= {fleet.g[1], fleet.g[3]}


def test_a_removal_that_stops_half_way_leaves_no_half_generation(bench, fleet, monkeypatch):
    fleet.boots(3)

    def half(path):
        (path / "spec.json").unlink()
        raise OSError(5, "Input/output error", str(path))

    with monkeypatch.context() as patched:
        patched.setattr("trispark_node.disk.shutil.rmtree", half)
        assert bench.refused("prune", keep=1)
    assert generations.damaged(bench.node) == {}
    bench.ask("prune", keep=1)
    assert [path.name for path in bench.node.layout.generations.iterdir()] == [fleet.g[2]]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_happened_before_the_protected_and_the_newest_stay(make_bench, stage_request, tmp_path_factory, data):
    bench = make_bench(tmp_path_factory.mktemp("node"))
    fleet = History(bench, stage_request)
    fleet.boots(data.draw(st.integers(1, 5)))
    numbers = st.integers(0, len(fleet.g) - 1)
    good = data.draw(st.lists(numbers, max_size=3))
    for number in good:
        fleet.good(number)
    current = data.draw(st.none() | numbers)
    if current is not None:
        bench.ask("activate", generation=fleet.g[current])
    again = data.draw(st.lists(numbers, max_size=3))
    for index, number in enumerate(again):
        fleet.record(fleet.g[number], f"again{index}")
    keep = data.draw(st.integers(1, 4))
    must = {*good[-1:], *([current] if current is not None else [])}
    bench.ask("prune", keep=keep)
    left = set(fleet.staged())
    assert must <= left
    assert len(left) >= min(len(fleet.g), keep)
    assert len(left - must) <= keep + 1, "beside the protected ones: `keep`, and the good one before the last"
    assert generations.damaged(bench.node) == {}
