"""After the upgrade the new baseline serves, and the old one is kept whole beside it."""

from __future__ import annotations

import json
from typing import Any

STATE = "/var/lib/trispark"


def interval(command: list[str]) -> str:
    return command[command.index("--decode-log-interval") + 1]


def test_the_new_baseline_serves(node: Any) -> None:
    engine = node.engine()
    assert engine["State"]["Running"]
    assert interval(engine["Config"]["Cmd"]) == "20"
    good = [entry["generation"] for entry in node.lines(f"{STATE}/good.jsonl")]
    assert len(good) == 2
    assert good[-1] == engine["Config"]["Labels"]["trispark.generation"]
    assert node.host.file(f"{STATE}/current").linked_to == f"{STATE}/generations/{good[-1]}"


def test_the_old_generation_is_stored_whole(node: Any) -> None:
    old, new = (entry["generation"] for entry in node.lines(f"{STATE}/good.jsonl"))
    assert sorted(node.host.file(f"{STATE}/generations").listdir()) == sorted([old, new])
    node.host.run_expect([0], f"cd {STATE}/generations/{old} && sha256sum --check --quiet --strict SHA256SUMS")
    spec = json.loads(node.host.file(f"{STATE}/generations/{old}/spec.json").content_string)
    assert interval(spec["container"]["command"]) == "40"


def test_both_boots_are_in_the_record_chain(node: Any) -> None:
    names = sorted(node.host.file(f"{STATE}/records").listdir())
    records = [json.loads(node.host.file(f"{STATE}/records/{name}").content_string) for name in names]
    assert [(record["kind"], record["outcome"]["state"]) for record in records] == [("boot", "valid")] * 2
    # The log of the engine that was stopped is kept.
    assert node.host.file(f"{STATE}/boots/{records[0]['boot_id']}/engine.log").size > 0
