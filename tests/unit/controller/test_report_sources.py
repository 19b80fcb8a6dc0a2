"""Which records a report is of; what was edited, and names that nothing has, are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from trial_records import REPOSITORY, LabRecords, walk_id

from trispark.cli import verb as verb_module
from trispark.cli.app import app
from trispark.cli.report import make_report
from trispark.errors import TrisparkError
from trispark.records import RecordCache
from trispark.report.render import write_report
from trispark.report.sources import find

WALK = walk_id(2)


@pytest.fixture
def lab(tmp_path: Path) -> LabRecords:
    found = LabRecords(tmp_path)
    found.trial(found.plan(2, boots=1))
    found.campaign("night", [("c wo_a", WALK, "ended")])
    (tmp_path / "templates").symlink_to(REPOSITORY / "templates")
    return found


def test_a_trial_is_found_by_id_number_and_beginning_and_a_campaign_by_name(lab: LabRecords) -> None:
    number = str(lab.cache.show(WALK)["seq"])
    for key in (WALK, number, WALK[:6]):
        asked = find(lab.root, "lab", lab.cache, key)
        assert (asked.kind, asked.name, [each.key for each in asked.trials]) == ("trial", WALK, [WALK])
    asked = find(lab.root, "lab", lab.cache, "night")
    assert (asked.kind, [each.key for each in asked.trials]) == ("campaign", [WALK])
    (trial,) = asked.trials
    assert [arm for arm, _ in trial.judged] == ["baseline", "candidate"]
    assert [record["requested"]["purpose"] for record in trial.others] == ["trial", "restore"]


def test_all_values_of_a_sweep_are_one_report_and_each_has_its_own(tmp_path: Path) -> None:
    lab = LabRecords(tmp_path)
    records = lab.trial(lab.plan(2, "block_size", boots=1))
    assert len(records) > 1
    asked = find(tmp_path, "lab", lab.cache, WALK)
    assert (asked.kind, [each.key for each in asked.trials]) == ("sweep", [record["id"] for record in records])
    (only,) = find(tmp_path, "lab", lab.cache, records[0]["id"]).trials
    assert {record["resolved"]["generation"] for record in only.records if record["kind"] == "boot"} <= {
        records[0]["resolved"]["baseline"], records[0]["resolved"]["candidate"],
    }  # fmt: skip


def boot_id(lab: LabRecords) -> str:
    return str(lab.cache.list()[0]["id"])


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (lambda lab: WALK.replace("a1b2", "a1b3"), f"near: {WALK}"),
        (lambda lab: "nigth", "near: night"),
        (lambda lab: "zzzz", "./trispark records list"),
        (lambda lab: "", "observed: nothing"),
        (lambda lab: "../x", "no trial and no campaign"),
        (boot_id, f"do: ./trispark report {WALK}"),
    ],
)
def test_a_name_that_nothing_has_is_refused_with_what_is_near(
    lab: LabRecords, key: Callable[[LabRecords], str], says: str
) -> None:
    with pytest.raises(TrisparkError) as caught:
        find(lab.root, "lab", lab.cache, key(lab))
    assert caught.value.id == "TS-REPORT-UNKNOWN"
    assert all(caught.value.as_dict().values()), "every field of an error line"
    assert says in str(caught.value)


def test_a_site_without_records_says_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(TrisparkError, match=r"there are no trials yet: ./trispark play stage_c -e feature=wo_a "):
        find(tmp_path, "lab", RecordCache(tmp_path / "none"), "t1")


def edit(lab: LabRecords, place: int, change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Change the copy of the record at this place; the record as it was."""
    record = lab.cache.list()[place]
    path = lab.cache.path(record)
    other = json.loads(path.read_text(encoding="utf-8"))
    change(other)
    path.write_text(json.dumps(other), encoding="utf-8")
    return record


def slower(record: dict[str, Any]) -> None:
    record["bench"]["requests"][0]["total_s"] *= 2


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_edited_record_is_refused_by_name(lab: LabRecords, place: int) -> None:
    record = edit(lab, place, slower)
    with pytest.raises(TrisparkError) as caught:
        find(lab.root, "lab", lab.cache, WALK)
    assert caught.value.id == "TS-REPORT-RECORD"
    assert caught.value.where == f"record {record['seq']} ({record['id']})"


def test_the_newest_boot_is_known_by_its_trial_and_a_broken_shape_by_its_schema(lab: LabRecords) -> None:
    trial = edit(lab, -1, lambda record: record["boots"][0].update(hash="0" * 64))
    with pytest.raises(TrisparkError, match="TS-REPORT-RECORD") as caught:
        find(lab.root, "lab", lab.cache, WALK)
    assert f"of trial {trial['id']}" in caught.value.where
    edit(lab, -1, lambda record: record["outcome"].pop("verdict"))
    with pytest.raises(TrisparkError, match="TS-RECORD-SCHEMA"):
        find(lab.root, "lab", lab.cache, WALK)


def test_a_missing_record_breaks_the_chain(lab: LabRecords) -> None:
    lab.cache.path(lab.cache.list()[1]).unlink()
    with pytest.raises(TrisparkError, match="TS-RECORD-CHAIN"):
        find(lab.root, "lab", lab.cache, WALK)


# -- the verb


@pytest.fixture
def verb(lab: LabRecords, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    (lab.root / "inventory").symlink_to(REPOSITORY / "inventory")
    monkeypatch.setattr(verb_module, "REPO", lab.root)
    runner = typer.testing.CliRunner()
    return lambda *arguments: runner.invoke(app, ["report", *arguments, "--site", "lab"])


def test_the_verb_writes_below_trispark_or_where_it_is_told_and_over_reports_alone(
    lab: LabRecords, verb: Callable[..., Any], tmp_path: Path
) -> None:
    done = verb(WALK, "--json")
    assert done.exit_code == 0, done.output
    made = json.loads(done.output.splitlines()[-1])
    own = lab.root / ".trispark" / "lab" / "reports" / f"{WALK}.html"
    assert (made["site"], made["path"], made["bytes"]) == ("lab", str(own), own.stat().st_size)
    first = own.read_bytes()
    assert verb(WALK).exit_code == 0
    assert own.read_bytes() == first
    target = tmp_path / "x.md"
    assert verb("night", "--format", "md", "--out", str(target)).exit_code == 0
    assert target.read_text(encoding="utf-8").startswith("<!-- trispark report -->\n# night\n")


@pytest.mark.parametrize("place", ["other.txt", "none/x.html", "."])
def test_what_is_no_report_is_never_written_over(tmp_path: Path, place: str) -> None:
    (tmp_path / "other.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(TrisparkError) as caught:
        write_report(tmp_path / place, "text")
    assert (caught.value.id, all(caught.value.as_dict().values())) == ("TS-REPORT-OUT", True)
    assert (tmp_path / "other.txt").read_text(encoding="utf-8") == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["other.txt"]


def test_a_format_that_is_none_is_refused(lab: LabRecords) -> None:
    with pytest.raises(TrisparkError, match="TS-REPORT-FORMAT") as caught:
        make_report(lab.root, "lab", WALK, "pdf", None)
    assert all(caught.value.as_dict().values())
