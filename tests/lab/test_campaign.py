"""A campaign on the lab: killed in the middle it repeats no finished boot and loses no record; a window in the past."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LIST = """\
schema_version: 1
summary: two trials of the test
entries:
  - {stage: c, feature: wo_a}
  - {stage: c, feature: engram_prefetch}
drain_s: 30
"""


def records_of(lab: Any, name: str = "spark0") -> list[dict[str, Any]]:
    script = "for f in /var/lib/trispark/records/*.json; do cat $f; done"
    return [json.loads(line) for line in lab.node(name, "sh", "-c", script).decode().splitlines()]


@pytest.fixture
def campaign(serving: Any) -> Iterator[Path]:
    """The list as a file of the site, under a name of its own, so that no earlier run has begun it."""
    path = serving.root / "inventory/lab/campaigns" / f"test-{time.time_ns()}.yml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(LIST, encoding="utf-8")
    yield path
    path.unlink()
    if not any(path.parent.iterdir()):
        path.parent.rmdir()


def test_a_killed_campaign_goes_on_at_the_exact_boot(serving: Any, campaign: Path) -> None:
    before = records_of(serving)
    command = serving.command("campaign", campaign=campaign.stem)
    process = subprocess.Popen(
        command, cwd=serving.root, env=serving.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 240 * serving.patience
        # Of the first trial two boots are recorded, and the next one is under way.
        while len(records_of(serving)) < len(before) + 2:
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.5)
        time.sleep(3)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    killed = records_of(serving)
    played = serving.play("campaign", timeout_s=600, campaign=campaign.stem)
    assert played.rc == 0, played.output[-4000:]
    records = records_of(serving)
    assert records[: len(killed)] == killed
    new = records[len(before) :]
    boots = [record for record in new if record["kind"] == "boot"]
    places = [(boot["requested"]["trial"], boot["requested"]["slot"]) for boot in boots]
    assert len(set(places)) == len(places)
    for trial in {trial for trial, _ in places}:
        slots = [slot for name, slot in places if name == trial]
        assert slots == list(range(len(slots))), "every boot once, in order, none missing"
    trials = [record for record in new if record["kind"] == "trial"]
    assert [trial["requested"]["feature"] for trial in trials] == ["wo_a", "engram_prefetch"]
    assert {trial["outcome"]["verdict"] for trial in trials} == {"INCONCLUSIVE"}
    for name in serving.nodes:
        assert records_of(serving, name) == records

    engines = {name: serving.inspect(name)["Id"] for name in serving.nodes}
    again = serving.play("campaign", campaign=campaign.stem)
    assert again.rc == 0, again.output[-4000:]
    assert records_of(serving) == records
    assert {name: serving.inspect(name)["Id"] for name in serving.nodes} == engines


def test_outside_its_window_nothing_begins(serving: Any, campaign: Path) -> None:
    campaign.write_text(f'{LIST}deadline: "2026-01-02T03:04:05+00:00"\n', encoding="utf-8")
    engines = {name: serving.inspect(name)["Id"] for name in serving.nodes}
    played = serving.play("campaign", campaign=campaign.stem)
    assert played.rc == 0, played.output[-4000:]
    assert "paused" in played.output
    assert {name: serving.inspect(name)["Id"] for name in serving.nodes} == engines


@pytest.mark.parametrize(
    ("extra", "error"), [({}, "TS-CAMPAIGN-UNKNOWN"), ({"campaign": "no-such"}, "TS-CAMPAIGN-UNKNOWN")]
)
def test_without_a_list_nothing_begins(serving: Any, campaign: Path, extra: dict[str, str], error: str) -> None:
    played = serving.play("campaign", **extra)
    assert played.rc != 0
    assert error in played.output
    assert campaign.stem in played.output


def test_a_slip_in_the_list_is_found_before_anything_begins(serving: Any, campaign: Path) -> None:
    campaign.write_text(LIST.replace("engram_prefetch", "engram_prefetsch"), encoding="utf-8")
    engines = {name: serving.inspect(name)["Id"] for name in serving.nodes}
    played = serving.play("campaign", campaign=campaign.stem)
    assert played.rc != 0
    assert "TS-CAMPAIGN-ENTRY" in played.output
    assert {name: serving.inspect(name)["Id"] for name in serving.nodes} == engines
