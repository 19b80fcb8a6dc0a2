"""State of a generation and cache of an image: made by the agent, kept over boots, gone with the generation."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from trispark_node import engine_state
from trispark_node.containers import Identity, engine_config
from trispark_node.spec import parse_spec

STATE = {"source": "{engine_state}/state", "target": "/state", "read_only": False}
AUTOTUNE = {"source": "{engine_state}/autotune", "target": "/root/.cache/autotune", "read_only": False}
CACHE = {"source": "{engine_cache}", "target": "/root/.cache", "read_only": False}


def boot(bench, request, number):
    """One boot of a generation; the answer of `start`."""
    bench.ask("stage", **request)
    bench.ask("activate", generation=request["generation"])
    bench.ask("fence", epoch=number, boot_id=f"b{number}")
    return bench.ask("start", boot_id=f"b{number}", epoch=number)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_start_makes_the_directories_for_root_alone_and_mounts_them(bench, stage_request):
    request = stage_request(mounts=[STATE, CACHE, AUTOTUNE])
    boot(bench, request, 5)
    generation = request["generation"]
    state, cache = bench.root / "engine-state", bench.root / "engine-cache"
    image = "a" * 16
    for path in (state, state / generation, state / generation / "state", cache, cache / image):
        assert (path.is_dir(), mode(path)) == (True, 0o700)
    mounts = bench.docker.configs[0]["HostConfig"]["Mounts"]
    assert [(mount["Source"], mount["Target"], mount["ReadOnly"]) for mount in mounts[:3]] == [
        (str(state / generation / "state"), "/state", False),
        (str(cache / image), "/root/.cache", False),
        (str(state / generation / "autotune"), "/root/.cache/autotune", False),
    ]


def test_staging_activating_and_asking_make_nothing(bench, stage_request):
    request = stage_request(mounts=[STATE, CACHE])
    bench.ask("stage", **request)
    bench.ask("activate", generation=request["generation"])
    assert bench.ask("can-start", generation=request["generation"])["mounts"][0].endswith("/state")
    bench.ask("fence", epoch=5, boot_id="b5")
    bench.ask("start", boot_id="b5", epoch=5, check=True)
    assert not (bench.root / "engine-state").exists()
    assert not (bench.root / "engine-cache").exists()


def test_a_second_boot_of_the_generation_finds_what_the_first_left(bench, stage_request):
    request = stage_request(mounts=[STATE])
    boot(bench, request, 5)
    place = bench.root / "engine-state" / request["generation"] / "state" / "tactics.json"
    place.write_text("kept")
    bench.ask("stop", deadline_s=1)
    assert boot(bench, request, 6)["removed_state"] == []
    assert place.read_text() == "kept"
    bench.ask("generation-show", generation=request["generation"])  # what the engine wrote is no damage of it


def test_another_generation_has_a_state_of_its_own_and_shares_the_cache(bench, stage_request):
    first, second = (stage_request(tag, mounts=[STATE, CACHE]) for tag in ("one", "two"))
    boot(bench, first, 5)
    bench.ask("stop", deadline_s=1)
    boot(bench, second, 6)
    sources = [[mount["Source"] for mount in config["HostConfig"]["Mounts"][:2]] for config in bench.docker.configs]
    assert sources[0][0] != sources[1][0]
    assert sources[0][1] == sources[1][1]


def test_the_state_goes_with_its_generation_at_the_next_start(bench, stage_request):
    first, second = (stage_request(tag, mounts=[STATE]) for tag in ("one", "two"))
    boot(bench, first, 5)
    bench.ask("stop", deadline_s=1)
    states = bench.root / "engine-state"
    for name in ("notes", "g0", "gABCDEFABCDEFABCD"):
        (states / name).mkdir()
    (states / "g0123456789abcdef").write_text("a file")
    (states / "gfedcba9876543210").symlink_to("/etc")
    shutil.rmtree(bench.node.layout.generation(first["generation"]))
    assert boot(bench, second, 6)["removed_state"] == [first["generation"]]
    left = {"notes", "g0", "gABCDEFABCDEFABCD", "g0123456789abcdef", "gfedcba9876543210", second["generation"]}
    assert {path.name for path in states.iterdir()} == left
    assert Path("/etc").is_dir()


def test_what_an_engine_left_as_a_link_is_not_followed_when_it_is_removed(bench, stage_request, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    first, second = (stage_request(tag, mounts=[STATE]) for tag in ("one", "two"))
    boot(bench, first, 5)
    (bench.root / "engine-state" / first["generation"] / "state" / "out").symlink_to(precious)
    bench.ask("stop", deadline_s=1)
    shutil.rmtree(bench.node.layout.generation(first["generation"]))
    boot(bench, second, 6)
    assert (precious / "file").read_text() == "x"


IN_THE_WAY = {
    "a link in place of all state": lambda states, own: states.symlink_to("/etc"),
    "a file in place of all state": lambda states, own: states.write_text("x"),
    "a link in place of the generation's": lambda states, own: (states.mkdir(), own.symlink_to("/etc")),
    "a file in place of the generation's": lambda states, own: (states.mkdir(), own.write_text("x")),
    "a link inside": lambda states, own: (own.mkdir(parents=True), (own / "state").symlink_to("/etc")),
    "a link to nothing": lambda states, own: (own.mkdir(parents=True), (own / "state").symlink_to("/nowhere")),
}


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_what_is_not_ours_is_refused_and_left_alone(bench, stage_request, what):
    request = stage_request(mounts=[STATE])
    bench.ask("stage", **request)
    bench.ask("activate", generation=request["generation"])
    bench.ask("fence", epoch=5, boot_id="b5")
    states = bench.root / "engine-state"
    IN_THE_WAY[what](states, states / request["generation"])
    before = bench.tree()
    error = bench.refused("start", boot_id="b5", epoch=5)
    assert error["id"] == "TS-AGENT-STATE"
    assert bench.refused("can-start", generation=request["generation"]) == error
    assert (bench.tree(), bench.docker.events) == (before, [])


@pytest.mark.parametrize(
    ("mount", "what"),
    [
        ({**STATE, "source": "{engine_state}"}, "source"),
        ({**STATE, "source": "{engine_state}/../g0123456789abcdef"}, "source"),
        ({**STATE, "source": "{engine_state}{generation}/x"}, "source"),
        ({**STATE, "source": "{engine_store}/state"}, "source"),
        ({**CACHE, "source": "{engine_cache}x"}, "source"),
        ({**CACHE, "source": "{engine_cache}/../x"}, "source"),
        ({**STATE, "source": "{generation}/adapters"}, "writable"),
    ],
)
def test_other_places_are_no_mount(bench, stage_request, mount, what):
    error = bench.refused("stage", **stage_request(mounts=[mount]))
    assert error["id"] == "TS-AGENT-REQUEST"
    assert what in error["what"]


def test_container_options_of_a_production_engine(bench, stage_request):
    check = {"test": ["CMD", "probe"], "interval_s": 30, "timeout_s": 20, "start_period_s": 1800, "retries": 3}
    request = stage_request(cap_add=["IPC_LOCK"], keep_entrypoint=False, healthcheck=check)
    spec = parse_spec(request["spec"])
    config = engine_config(spec, engine_state.places(bench.node, spec), Identity("engine", spec.generation, "b1", 1, 1))
    assert config["Entrypoint"] == [""]
    assert config["HostConfig"]["CapAdd"] == ["IPC_LOCK"]
    assert config["Healthcheck"] == {
        "Test": ["CMD", "probe"],
        "Interval": 30_000_000_000,
        "Timeout": 20_000_000_000,
        "StartPeriod": 1_800_000_000_000,
        "Retries": 3,
    }


@pytest.mark.parametrize(
    "container",
    [
        {"cap_add": ["ipc_lock"]},
        {"cap_add": ["--privileged"]},
        {"healthcheck": {"test": ["NONE"], "interval_s": 1, "timeout_s": 1, "start_period_s": 0, "retries": 1}},
        {"healthcheck": {"test": ["CMD"], "interval_s": 1, "timeout_s": 1, "start_period_s": 0, "retries": 1}},
        {"healthcheck": {"test": ["CMD", "x"], "interval_s": 0, "timeout_s": 1, "start_period_s": 0, "retries": 1}},
        {"healthcheck": {"test": ["CMD", "x"], "interval_s": 1, "timeout_s": 1, "start_period_s": 0}},
        {"keep_entrypoint": "no"},
    ],
)
def test_options_of_a_wrong_form_are_refused(bench, stage_request, container):
    assert bench.refused("stage", **stage_request(**container))["id"] == "TS-AGENT-REQUEST"
