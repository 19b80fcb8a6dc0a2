"""stage and activate: complete or not at all, and never anything else than what was hashed."""

from __future__ import annotations

import base64
import copy
import hashlib
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from trispark_node import generations
from trispark_node.canonical import generation_id
from trispark_node.errors import AgentError
from trispark_node.fields import Fields
from trispark_node.generations import GenerationRequest, StageRequest
from trispark_node.mutation import Mode, mutate

MODE = Mode(check=False, lock_wait_s=0)


def test_staged_files(bench, stage_request):
    request = stage_request()
    answer = bench.ask("stage", **request)
    assert answer["changed"]
    directory = bench.node.layout.generation(request["generation"])
    names = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    assert names == [
        "SHA256SUMS",
        "adapters/sitecustomize.py",
        "adapters/trispark_wo_a/__init__.py",
        "engine.env",
        "launch.args",
        "resolved.json",
        "spec.json",
    ]
    subprocess.run(["sha256sum", "--quiet", "--strict", "-c", "SHA256SUMS"], cwd=directory, check=True)
    modes = {
        name: stat.S_IMODE((directory / name).stat().st_mode)
        for name in ("engine.env", "spec.json", "adapters", "adapters/trispark_wo_a", "adapters/sitecustomize.py", ".")
    }
    assert modes == {
        "engine.env": 0o600,
        "spec.json": 0o600,
        "adapters": 0o755,
        "adapters/trispark_wo_a": 0o755,
        "adapters/sitecustomize.py": 0o644,
        ".": 0o700,
    }


def test_a_library_is_staged_byte_for_byte(bench, stage_request):
    library = bytes(range(256))
    request = stage_request()
    request["resolved"]["adapters"]["lib/x.so"] = hashlib.sha256(library).hexdigest()
    request["adapters"]["lib/x.so"] = {"base64": base64.b64encode(library).decode()}
    request["generation"] = request["spec"]["generation"] = generation_id(request["resolved"])
    assert bench.ask("stage", **request)["changed"]
    staged = bench.node.layout.generation(request["generation"]) / "adapters" / "lib" / "x.so"
    assert staged.read_bytes() == library
    assert not bench.ask("stage", **request)["changed"]


def generations_on_disk(bench) -> list[str]:
    """Also temporary ones."""
    return sorted(path.name for path in bench.node.layout.generations.iterdir())


def edited(request, **changes):
    request = copy.deepcopy(request)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = request
        for parent in parents:
            place = place[int(parent)] if parent.isdecimal() else place[parent]
        place[last] = value
    return request


@pytest.mark.parametrize(
    ("changes", "error_id", "words"),
    [
        ({"generation": "g0123456789abcdef"}, "TS-AGENT-GENERATION", "g0123456789abcdef"),
        ({"resolved__site": "sparks"}, "TS-AGENT-GENERATION", ""),
        ({"adapters": {}}, "TS-AGENT-ADAPTERS", "sitecustomize.py"),
        ({"adapters": {"../evil.py": ""}}, "TS-AGENT-REQUEST", "../evil.py"),
        ({"adapters": {"x.so": {"base64": "AA="}}}, "TS-AGENT-REQUEST", "x.so"),
        ({"adapters": {"x.so": {"base64": "A A="}}}, "TS-AGENT-REQUEST", "x.so"),
        ({"adapters": {"x.so": {"base64": None}}}, "TS-AGENT-REQUEST", "x.so"),
        ({"adapters": {"x.so": {"base64": "", "mode": 1}}}, "TS-AGENT-REQUEST", "mode"),
        ({"adapters": {"x.so": [1]}}, "TS-AGENT-REQUEST", "x.so"),
        ({"adapters": {"x.so": {"base64": ""}}}, "TS-AGENT-ADAPTERS", "x.so"),
        ({"adapters": {"/evil.py": ""}}, "TS-AGENT-REQUEST", "/evil.py"),
        ({"files": {"engine.env": ""}}, "TS-AGENT-REQUEST", "launch.args"),
        ({"spec__container__env": {"DSPARK_BLOCK_SIZE": "5"}}, "TS-AGENT-SPEC", "env"),
        ({"spec__container__command": ["rm"]}, "TS-AGENT-SPEC", "command"),
        ({"spec__container__image": "other@sha256:" + "c" * 64}, "TS-AGENT-SPEC", "image"),
        ({"spec__container__image": "other:latest"}, "TS-AGENT-REQUEST", "other:latest"),
        ({"spec__container__mounts": []}, "TS-AGENT-SPEC", "mounts"),
        ({"spec__rank": 2}, "TS-AGENT-SPEC", "image|env"),
        ({"spec__container__surprise": 1}, "TS-AGENT-REQUEST", "surprise"),
        ({"spec__container__network_mode": "container:other"}, "TS-AGENT-REQUEST", "network_mode"),
        ({"spec__container__devices": ["/etc"]}, "TS-AGENT-REQUEST", "/etc"),
        ({"spec__container__shm_size": "much"}, "TS-AGENT-REQUEST", "much"),
        ({"spec__spec_version": 2}, "TS-AGENT-REQUEST", "spec_version"),
    ],
)
def test_stage_refuses(bench, stage_request, changes, error_id, words):
    error = bench.refused("stage", **edited(stage_request(), **changes))
    assert error["id"] == error_id
    assert any(word in " ".join(error.values()) for word in words.split("|"))
    assert not bench.root.exists()


def damage_added(directory: Path) -> None:
    (directory / "adapters/extra.py").write_text("import os\n")


def damage_linked(directory: Path) -> None:
    (directory / "adapters/sitecustomize.py").unlink()
    (directory / "adapters/sitecustomize.py").symlink_to("/etc/hostname")


def damage_directory_link(directory: Path) -> None:
    (directory / "adapters/more").symlink_to("/etc")


def damage_resolved(directory: Path) -> None:
    """Someone edits a file and writes matching sums: the id still tells."""
    path = directory / "resolved.json"
    path.write_text(path.read_text().replace('"lab"', '"lob"'))
    names = [line.split("  ")[1] for line in (directory / "SHA256SUMS").read_text().splitlines()]
    sums = subprocess.run(["sha256sum", *names], cwd=directory, check=True, capture_output=True).stdout
    (directory / "SHA256SUMS").write_bytes(sums)


DAMAGES = {
    "changed": lambda d: (d / "engine.env").write_text("X=1\n"),
    "missing": lambda d: (d / "spec.json").unlink(),
    "SHA256SUMS": lambda d: (d / "SHA256SUMS").unlink(),
    "added": damage_added,
    "changed: adapters/sitecustomize.py": damage_linked,
    "added: adapters/more": damage_directory_link,
    "resolved.json (is g": damage_resolved,
}


@pytest.mark.parametrize("word", DAMAGES)
def test_a_damaged_generation_is_refused_and_repaired_by_staging(bench, active, word):
    DAMAGES[word](bench.node.layout.generation(active["generation"]))
    for verb, request in (
        ("activate", {"generation": active["generation"]}),
        ("start", {"boot_id": "b1", "epoch": 5}),
        ("good-mark", {"generation": active["generation"], "boot_id": "b1", "time": "t"}),
    ):
        error = bench.refused(verb, **request)
        assert error["id"] == "TS-AGENT-DAMAGED"
        assert word in error["observed"]
    error = bench.refused("stage", **active)
    assert (error["id"], word in error["observed"]) == ("TS-AGENT-DAMAGED", True), "staging again hides nothing"
    assert bench.ask("stage", **active, repair=True)["changed"]
    assert bench.ask("start", boot_id="b1", epoch=5)["changed"]
    assert generations_on_disk(bench) == [active["generation"]]


@pytest.mark.parametrize("verb", ["can-start", "activate", "start", "stage"])
def test_one_changed_byte_of_an_adapter_is_named_with_both_hashes(bench, active, verb):
    path = bench.node.layout.generation(active["generation"]) / "adapters/trispark_wo_a/__init__.py"
    content = bytearray(path.read_bytes())
    then = hashlib.sha256(content).hexdigest()
    content[3] ^= 1
    path.write_bytes(content)
    now = hashlib.sha256(content).hexdigest()
    requests = {"start": {"boot_id": "b1", "epoch": 5}, "stage": active}
    error = bench.refused(verb, **requests.get(verb, {"generation": active["generation"]}))
    named = f"adapters/trispark_wo_a/__init__.py (sha256 {now[:16]}, staged as sha256 {then[:16]})"
    assert (error["id"], named in error["observed"]) == ("TS-AGENT-DAMAGED", True), error


@pytest.mark.parametrize("change", ["edited", "added", "removed"])
def test_sums_that_were_corrected_after_an_edit_hide_no_adapter(bench, active, change):
    directory = bench.node.layout.generation(active["generation"])
    path = directory / "adapters/sitecustomize.py"
    if change == "edited":
        path.write_text("import os\n")
    elif change == "added":
        (directory / "adapters/more.py").write_text("import os\n")
    else:
        path.unlink()
    files = sorted(each for each in directory.rglob("*") if each.is_file() and each.name != "SHA256SUMS")
    sums = (f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.relative_to(directory)}\n" for each in files)
    (directory / "SHA256SUMS").write_text("".join(sums))
    said = {"edited": "changed: adapters/s", "added": "added: adapters/more.py", "removed": "missing: adapters/s"}
    assert said[change] in bench.refused("can-start", generation=active["generation"])["observed"]


def test_same_id_with_other_rendering_is_refused(bench, active):
    other = {**active, "files": {**active["files"], "launch.args": "--tp 4\n"}}
    assert bench.refused("stage", **other)["id"] == "TS-AGENT-GENERATION"


def test_current_that_is_no_link_is_refused(bench, active):
    bench.node.layout.current.unlink()
    bench.node.layout.current.mkdir()
    assert bench.refused("activate", generation=active["generation"])["id"] == "TS-AGENT-DAMAGED"


def whole(bench, generation: str) -> bool:
    try:
        generations.require_whole(bench.node, generation)
    except AgentError:
        return False
    return True


def stage_on(bench, request):
    parsed = StageRequest.parse(Fields(request, "request"))

    def operation(disk):
        node = bench.with_disk(disk)
        mutate(node, "stage", MODE, lambda: generations.plan_stage(node, parsed))

    return operation


def test_stage_killed_at_every_step(bench, stage_request, crashes):
    """At each point: absent or whole, never a part under the name; the next stage finishes it, and `pending` tells."""
    request = stage_request()
    target = bench.node.layout.generation(request["generation"])

    def reset():
        shutil.rmtree(bench.root, ignore_errors=True)

    for point in crashes(stage_on(bench, request), reset):
        assert not target.exists() or whole(bench, request["generation"]), point
        assert len(bench.node.journal.read().pending()) <= 1, point
        bench.ask("stage", **request)
        assert whole(bench, request["generation"]), point
        assert generations_on_disk(bench) == [request["generation"]], point


def test_restaging_a_damaged_generation_killed_at_every_step(bench, stage_request, crashes):
    request = stage_request()
    directory = bench.node.layout.generation(request["generation"])

    request["repair"] = True

    def reset():
        bench.ask("stage", **request)
        (directory / "engine.env").write_text("damaged")

    for point in crashes(stage_on(bench, request), reset):
        bench.ask("stage", **request)
        assert whole(bench, request["generation"]), point


def test_activate_killed_at_every_step(bench, active, stage_request, crashes):
    old, new = active["generation"], stage_request("two")["generation"]
    bench.ask("stage", **stage_request("two"))

    def operation(disk):
        node = bench.with_disk(disk)
        mutate(node, "activate", MODE, lambda: generations.plan_activate(node, GenerationRequest(new)))

    for point in crashes(operation, lambda: bench.ask("activate", generation=old)):
        assert generations.current(bench.node) in (old, new), point
        assert whole(bench, generations.current(bench.node)), point
        bench.ask("activate", generation=new)
        assert generations.current(bench.node) == new, point
        bench.ask("activate", generation=old)
        assert bench.node.journal.read().pending() == [], point


def test_a_stored_generation_is_shown_whole_or_not_at_all(bench, active, stage_request):
    answer = bench.ask("generation-show", generation=active["generation"])
    assert answer["resolved"] == active["resolved"]
    assert answer["spec"] == active["spec"]
    (bench.node.layout.generation(active["generation"]) / "resolved.json").write_text("{}", encoding="utf-8")
    assert bench.refused("generation-show", generation=active["generation"])["id"] == "TS-AGENT-DAMAGED"
