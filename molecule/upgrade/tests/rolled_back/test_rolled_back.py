"""After the rollback the old baseline serves again, by the nodes' own account, and the newer one is kept."""

from __future__ import annotations

from typing import Any

STATE = "/var/lib/trispark"


def test_the_old_baseline_serves_again(node: Any) -> None:
    engine = node.engine()
    command = engine["Config"]["Cmd"]
    assert engine["State"]["Running"]
    assert command[command.index("--decode-log-interval") + 1] == "40"
    good = [entry["generation"] for entry in node.lines(f"{STATE}/good.jsonl")]
    assert good[0] == good[-1] == engine["Config"]["Labels"]["trispark.generation"]
    assert len(good) == 3
    assert sorted(set(good)) == sorted(node.host.file(f"{STATE}/generations").listdir())


def test_all_ranks_run_one_boot(nodes: list[Any]) -> None:
    labels = [node.engine()["Config"]["Labels"] for node in nodes]
    assert len({(label["trispark.boot"], label["trispark.epoch"]) for label in labels}) == 1
    # Two boots; a rollback takes the second epoch after them, the one between is of whatever it broke into.
    assert labels[0]["trispark.epoch"] == "4"
