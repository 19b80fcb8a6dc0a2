"""A node that had nothing: what is there now came with this installation, and nothing else did."""

from __future__ import annotations

from typing import Any


def test_the_first_boot_is_the_only_one_and_good(node: Any) -> None:
    state = "/var/lib/trispark"
    engine = node.engine()["Config"]["Labels"]
    assert node.host.file(f"{state}/generations").listdir() == [engine["trispark.generation"]]
    assert [entry["generation"] for entry in node.lines(f"{state}/good.jsonl")] == [engine["trispark.generation"]]
    assert node.host.file(f"{state}/current").linked_to == f"{state}/generations/{engine['trispark.generation']}"
    assert engine["trispark.epoch"] == "1"


def test_only_this_sites_images_and_containers_are_there(node: Any) -> None:
    assert node.host.check_output("docker ps --all --format '{{.Names}}'") == "trispark-engine"
    names = set(node.host.check_output("docker images --format '{{.Repository}}'").split())
    assert names == {f"registry:5000/trispark/{name}" for name in ("lab-engine", "lab-engine-canary", "bench")}
