"""Real runs of the playbooks of trials and campaigns, up to the first question to a node; no node can be reached."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from trispark.cli import exit_codes
from trispark.run_events import QuietObserver
from trispark.runner import RunResult, run_playbook
from trispark.walk_journal import Journal
from trispark.walk_plan import keep_walk, plan_walk, walks_directory

REPOSITORY = Path(__file__).resolve().parents[3]
PARTS = ("adapters", "experiments", "inventory/lab", "playbooks", "plugins", "roles", "schemas", "src", "templates")
IMAGE = "registry:5000/trispark/engine@sha256:" + "a" * 64
WALK = "t20260102T030405Z-a1b2"
LOCK = "Look who works on this node"
LEFT = "Look what a controller left"
"""The first task that asks a node; one that does not answer is the verb's own business."""
LIST = """\
schema_version: 1
summary: two trials
entries:
  - {stage: c, feature: wo_a}
  - {stage: b, feature: block_size, value: 5}
"""


@dataclass
class Notes(QuietObserver):
    """What a person would see."""

    lines: list[str] = field(default_factory=list)

    def note(self, lines: tuple[str, ...]) -> None:
        self.lines += lines


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout whose lab has images and nodes that refuse every connection."""
    root = tmp_path_factory.mktemp("checkout")
    for part in PARTS:
        shutil.copytree(REPOSITORY / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "ansible.cfg", root)
    site = root / "inventory/lab"
    hosts = yaml.safe_load((site / "hosts.yml").read_text(encoding="utf-8"))
    for host in hosts["sparks"]["hosts"].values():
        host.update(ansible_port=1)
    (site / "hosts.yml").write_text(yaml.safe_dump(hosts), encoding="utf-8")
    images = {"site_engine_image": IMAGE, "site_bench_image": IMAGE}
    (site / "group_vars/all/images.yml").write_text(yaml.safe_dump(images), encoding="utf-8")
    (root / "experiments/campaigns").mkdir(exist_ok=True)
    (root / "experiments/campaigns/night.yml").write_text(LIST, encoding="utf-8")
    return root


@pytest.fixture
def checkout(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PYTHONPATH", str(tree / "src"))
    yield tree
    shutil.rmtree(tree / ".trispark", ignore_errors=True)


def play(root: Path, name: str, *, check: bool = False, **extra: str) -> tuple[RunResult, list[str]]:
    notes = Notes()
    result = run_playbook(root, name, site="lab", extra=extra, check=check, observer=notes)
    return result, notes.lines


def written(root: Path) -> set[str]:
    """What is below `.trispark`, without the run itself."""
    kept = {path.relative_to(root / ".trispark").as_posix() for path in (root / ".trispark").rglob("*")}
    return {name for name in kept if name.split("/")[0] not in ("runs", "pycache")}


def runs(root: Path) -> list[Path]:
    return [path for path in (root / ".trispark/runs").iterdir() if path.is_dir()]


def test_a_campaign_in_check_mode_says_its_list_and_begins_nothing(checkout: Path) -> None:
    result, lines = play(checkout, "campaign", check=True, campaign="night")
    assert result.ok, result.failures
    said = [line for line in lines if line.startswith("entry ")]
    assert [line.partition(": ")[0] for line in said] == ["entry 1/2 c wo_a", "entry 2/2 b block_size=5"]
    assert all("would be begun: " in line for line in said)
    assert (result.changed, written(checkout)) == (False, {"lab", "lab/campaign.lock"})
    assert len(runs(checkout)) == 1, "no child run"


def test_a_campaign_refuses_what_is_for_one_trial(checkout: Path) -> None:
    result, _ = play(checkout, "campaign", campaign="night", resume=WALK)
    assert [failure.check_id for failure in result.failures] == ["TS-CAMPAIGN-VARIABLE"]
    assert "observed: resume" in result.failures[0].message
    assert (written(checkout), len(runs(checkout))) == (set(), 1)


@pytest.mark.parametrize(
    ("extra", "error_id"),
    [
        ({"deadline": "tomorrow"}, "TS-TIME-FORMAT"),
        ({"deadline": "2026-01-03T06:00"}, "TS-TIME-ZONE"),
        ({"drain_deadline_s": "ten"}, "TS-DRAIN-SECONDS"),
        ({"boots": "5"}, "TS-PLAN-BOOTS"),
        ({"featre": "wo_a"}, "TS-PLAY-VARIABLE"),
        ({"deadine": "2026-01-03T06:00"}, "TS-PLAY-VARIABLE"),
    ],
)
def test_what_is_written_wrongly_is_refused_before_a_node_is_asked(
    checkout: Path, extra: dict[str, str], error_id: str
) -> None:
    result, _ = play(checkout, "stage_c", feature="wo_a", **extra)
    assert [failure.check_id for failure in result.failures] == [error_id]
    assert not result.unreachable


def test_a_confirmation_of_nothing_is_refused_before_a_node_is_asked(checkout: Path) -> None:
    result, _ = play(checkout, "confirm")
    assert [failure.check_id for failure in result.failures] == ["TS-CONFIRM-NOTHING"]
    assert not result.unreachable


def test_a_stage_takes_the_boots_and_an_a_a_trial_is_one_of_its_trials(checkout: Path) -> None:
    result, lines = play(checkout, "stage_c", feature="none", boots="6")
    assert len(result.unreachable) == 3
    assert {failure.task for failure in result.failures if failure.unreachable} == {LOCK, LEFT, "Read the host"}
    said = [line for line in lines if "12 boots" in line]
    assert len(said) == 1, lines


@pytest.mark.parametrize(
    ("events", "first"),
    [
        ([], "Read the host"),
        ([{"event": "slot_started", "slot": 0}], "Read the host"),
        ([{"event": "slot_started", "slot": 0}, {"event": "stopped", "reason": "x"}], "Read the node's state"),
    ],
    ids=["new", "goes-on", "only-brought-back"],
)
def test_the_way_back_of_a_trial_asks_for_no_preparation(
    checkout: Path, events: list[dict[str, Any]], first: str
) -> None:
    """Preflight, images, shards and drain are for the boots of the trial; what serves no one needs none of them."""
    from trispark.plan import Ground

    directory = walks_directory(checkout, "lab") / WALK
    keep_walk(directory, plan_walk(Ground.load(checkout, "lab"), WALK, "c", "wo_a"))
    for event in events:
        Journal(directory).write(time="t", **event)
    result, _ = play(checkout, "stage_c", resume=WALK, drain_deadline_s="5")
    assert len(result.unreachable) == 3
    assert {failure.task for failure in result.failures if failure.unreachable} == {LOCK, LEFT, first}


# -- verbs that prepare nodes before they plan


@pytest.mark.parametrize(
    ("verb", "given", "says", "status"),
    [
        ("stage_a", {"feature": "wo_a"}, "TS-FEATURE-STAGE", exit_codes.REFUSED),
        ("stage_a", {"feature": "no_such"}, "TS-FEATURE-UNKNOWN", exit_codes.USAGE),
        ("stage_a", {"DSV41_WO_A_W8": "1"}, "DSV41_WO_A_W8", exit_codes.REFUSED),
        ("site", {"DSV41_WO_A_W8": "1"}, "DSV41_WO_A_W8", exit_codes.REFUSED),
    ],
    ids=["of another stage", "unknown", "misplaced", "converge"],
)
def test_what_is_given_wrongly_is_refused_before_a_node_is_asked(
    checkout: Path, verb: str, given: dict[str, str], says: str, status: int
) -> None:
    result, _ = play(checkout, verb, **given)
    assert [failure.node for failure in result.failures] == ["localhost"]
    assert says in result.failures[0].message
    assert (result.unreachable, result.changed) == (frozenset(), False)
    assert exit_codes.of_run(result) == status


@pytest.mark.parametrize("verb", ["stage_a", "site"])
def test_nothing_given_wrongly_goes_on_to_the_nodes(checkout: Path, verb: str) -> None:
    result, _ = play(checkout, verb)
    assert set(result.unreachable) == {"spark0", "spark1", "spark2"}
