"""`--check --diff` on the lab: it says what would change, and every byte and container stays as it was."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.slow]

CHECK = ("--check", "--diff")
SHARD = "engram-l1-r1of3.bin"
RECAP = re.compile(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.MULTILINE)


def controller(root: Path) -> dict[str, str]:
    """{path: sha256} of what the controller keeps of the site; a lock file names who had it last."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((root / ".trispark" / "lab").rglob("*"))
        if path.is_file() and "ssh" not in path.parts and path.suffix != ".lock"
    }


def everything(lab: Any) -> dict[str, Any]:
    """All files of ours on nodes and controller, and every container and image of every node."""
    seen: dict[str, Any] = {"controller": controller(lab.root)}
    for name in lab.nodes:
        containers = lab.node(name, "docker", "ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Names}} {{.State}}")
        # Sorted: images that are reproducible have one time, so that their order says nothing.
        images = sorted(lab.node(name, "docker", "images", "--quiet", "--no-trunc").split())
        seen[name] = (lab.hash_tree(name), containers, images)
    return seen


def changed(output: str) -> dict[str, int]:
    return {match[1]: int(match[2]) for match in RECAP.finditer(output)}


def words(output: str) -> str:
    """Without the line breaks of the callback."""
    return " ".join(output.split())


def label(lab: Any, name: str) -> str:
    generation: str = lab.inspect(name)["Config"]["Labels"]["trispark.generation"]
    return generation


@pytest.fixture
def restored(serving: Any) -> Iterator[Any]:
    """Serving the baseline with whole shards, before and after."""
    yield serving
    played = serving.play("site")
    assert played.rc == 0, played.output[-4000:]


def test_a_serving_lab_has_nothing_to_change(serving: Any) -> None:
    before = everything(serving)
    played = serving.play("site", options=CHECK)
    assert played.rc == 0, played.output[-4000:]
    assert "serves on all ranks" in words(played.output)
    assert changed(played.output) == dict.fromkeys(("localhost", *serving.nodes), 0)
    assert everything(serving) == before


def test_a_missing_shard_would_be_packed_and_is_not(restored: Any) -> None:
    restored.node("spark1", "rm", f"/srv/engram/{SHARD}")
    before = everything(restored)
    played = restored.play("site", options=CHECK)
    assert played.rc == 0, played.output[-4000:]
    assert f"-{SHARD} missing" in played.output
    assert f"+{SHARD} ok" in played.output
    assert "missing, would be packed" in words(played.output)
    assert changed(played.output) == {"localhost": 0, "spark0": 0, "spark1": 1, "spark2": 0}
    assert everything(restored) == before


def test_a_wrong_shard_fails_in_check_mode_as_it_does_for_real(restored: Any) -> None:
    path = f"/srv/engram/{SHARD}"
    restored.node("spark1", "cp", path, f"{path}.aside")
    restored.node("spark1", "truncate", "--size=-1", path)
    try:
        before = everything(restored)
        played = restored.play("site", options=CHECK)
        assert played.rc != 0
        assert "TS-ENGRAM-SIZE" in played.output
        assert everything(restored) == before
    finally:
        restored.node("spark1", "mv", f"{path}.aside", path)


def test_staging_and_activating_show_their_differences(restored: Any) -> None:
    """A candidate serves; the baseline is on two nodes and, with a shard, not on the third."""
    baseline = label(restored, "spark0")
    played = restored.play("boot", boot_arm="candidate", boot_purpose="trial", feature="wo_a")
    assert played.rc == 0, played.output[-4000:]
    candidate = label(restored, "spark0")
    assert candidate != baseline
    directory = f"/var/lib/trispark/generations/{baseline}"
    restored.node("spark2", "mv", directory, "/root/aside")
    restored.node("spark2", "mv", "/srv/engram/engram-l1-r2of3.bin", "/root/aside.bin")
    try:
        before = everything(restored)
        played = restored.play("site", options=CHECK)
        assert played.rc == 0, played.output[-4000:]
        output = played.output
        assert "does not serve on all ranks, it is booted" in words(output)
        assert output.count(f"-current {candidate}") == output.count(f"+current {baseline}") == 2
        assert output.count("-absent") == 1
        assert len(re.findall(r"^\+[0-9a-f]{64}  resolved\.json$", output, re.MULTILINE)) == 1
        assert f"{baseline} would be staged and become current" in words(output)
        assert everything(restored) == before
    finally:
        restored.node("spark2", "mv", "/root/aside", directory)
        restored.node("spark2", "mv", "/root/aside.bin", "/srv/engram/engram-l1-r2of3.bin")


def test_a_damaged_generation_fails_in_check_mode(restored: Any) -> None:
    """The way back would be refused on one node, so its rehearsal is refused, too."""
    baseline = label(restored, "spark0")
    path = f"/var/lib/trispark/generations/{baseline}/launch.args"
    restored.node("spark1", "cp", "-p", path, "/root/aside.args")
    restored.node("spark1", "sh", "-c", f"echo >> {path}")
    try:
        before = everything(restored)
        played = restored.play("rollback", options=CHECK, rollback_to=baseline)
        assert played.rc != 0
        assert "TS-ROLLBACK-TARGET" in played.output
        assert "damaged on spark1 (changed: launch.args)" in words(played.output)
        assert everything(restored) == before
    finally:
        restored.node("spark1", "mv", "/root/aside.args", path)


WOULD = {
    "boot": ({}, "", None),
    "boot of a feature": ({"feature": "wo_a"}, "would be staged and become current", None),
    "stage_c": ({"feature": "wo_a"}, "would be booted", None),
    "stop": ({}, "-engine trispark-engine running", dict.fromkeys(("spark0", "spark1", "spark2"), 1)),
    "rollback": ({}, "the last good generation", None),
    "promote": ({"revert": "true"}, "", dict.fromkeys(("localhost", "spark0", "spark1", "spark2"), 0)),
    "share": ({}, "", dict.fromkeys(("localhost", "spark0", "spark1", "spark2"), 0)),
    "adopt": ({}, "", dict.fromkeys(("localhost", "spark0", "spark1", "spark2"), 0)),
}
"""{verb: (its variables, what it says, the changes that it counts; None for any)}."""


@pytest.mark.parametrize("verb", WOULD)
def test_a_verb_says_what_it_would_do_and_does_nothing(serving: Any, verb: str) -> None:
    extra, said, counted = WOULD[verb]
    before = everything(serving)
    played = serving.play(verb.split()[0], options=CHECK, **extra)
    assert played.rc == 0, played.output[-4000:]
    assert said in words(played.output)
    assert counted is None or changed(played.output) == counted or changed(played.output) == {"localhost": 0, **counted}
    assert everything(serving) == before


CAMPAIGN = """\
schema_version: 1
summary: One trial.
entries: [{stage: c, feature: wo_a}]
"""


def test_a_campaign_says_what_it_would_walk_and_boots_nothing(serving: Any) -> None:
    path = serving.root / "inventory" / "lab" / "campaigns" / "rehearsal.yml"
    path.parent.mkdir()
    path.write_text(CAMPAIGN, encoding="utf-8")
    try:
        before = everything(serving)
        played = serving.play("campaign", options=CHECK, campaign="rehearsal")
        assert played.rc == 0, played.output[-4000:]
        assert "wo_a" in played.output
        assert everything(serving) == before
    finally:
        path.unlink()
        path.parent.rmdir()
