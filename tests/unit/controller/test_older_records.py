"""Records of nodes that were made anew: found by id, by no number, and never missed without a word."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from trial_records import REPOSITORY, LabRecords, walk_id

from trispark.boot_comparison import choose_boots
from trispark.cli import verb as verb_module
from trispark.cli.app import app
from trispark.errors import TrisparkError
from trispark.older_records import find_record, older_caches
from trispark.record_chain import set_aside_older_chain
from trispark.records import RecordCache
from trispark.report.build import Material
from trispark.report.sources import find
from trispark.report.trial import banner_of
from trispark.walk_journal import Journal
from trispark.walk_plan import walks_directory

OLD, NEW = walk_id(2), walk_id(3)
Record = dict[str, Any]


def walked(lab: LabRecords, walk: str, records: list[Record], reason: str = "") -> None:
    """The journal of a walk that has ended and left these records of trials."""
    journal = Journal(walks_directory(lab.root, "lab") / walk)
    journal.write("began", "2026-01-02T03:04:05Z")
    for slot, boot in enumerate(each for record in records for each in record["boots"]):
        journal.write("slot_ended", "2026-01-02T03:05:00Z", slot=slot, record=boot["boot_id"], state="valid")
    journal.write("ended", "2026-01-02T04:00:00Z", records=[record["id"] for record in records], reason=reason)


@pytest.fixture
def lab(tmp_path: Path) -> LabRecords:
    """A site whose nodes were made anew after a trial, and on which another trial was made since."""
    found = LabRecords(tmp_path, requests=2)
    walked(found, OLD, found.trial(found.plan(2, boots=1)))
    assert set_aside_older_chain(["n0"], {"n0": None}, found.cache) is not None
    walked(found, NEW, found.trial(found.plan(3, boots=1)))
    found.campaign("night", [("c wo_a", OLD, "ended"), ("c wo_a again", NEW, "ended")])
    return found


@pytest.fixture
def verb(lab: LabRecords, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    for name in ("inventory", "templates"):
        (lab.root / name).symlink_to(REPOSITORY / name)
    monkeypatch.setattr(verb_module, "REPO", lab.root)
    runner = typer.testing.CliRunner()
    return lambda *arguments: runner.invoke(app, [*arguments, "--site", "lab"])


def older(lab: LabRecords) -> RecordCache:
    (chain,) = older_caches(lab.cache)
    return chain


def older_boot(lab: LabRecords) -> Record:
    """One with an id of its own: boots of both chains were made in the same seconds here, and only numbers differ."""
    record = older(lab).list()[0]
    path = older(lab).path(record)
    record |= {"id": "b20250101T000000Z-0001", "boot_id": "b20250101T000000Z-0001"}
    path.unlink()
    older(lab).path(record).write_text(json.dumps(record), encoding="utf-8")
    return record


# -- reports


@pytest.mark.parametrize("key", [OLD, OLD[:9]])
def test_a_trial_of_nodes_that_were_made_anew_has_its_report(lab: LabRecords, key: str) -> None:
    asked = find(lab.root, "lab", lab.cache, key)
    (trial,) = asked.trials
    assert (asked.name, trial.record) == (OLD, older(lab).show(OLD))
    assert banner_of(Material.of(asked).trials[0]).verdict == "INCONCLUSIVE"


def test_a_number_is_one_of_the_chain_of_now(lab: LabRecords) -> None:
    number = older(lab).show(OLD)["seq"]
    assert find(lab.root, "lab", lab.cache, str(number)).name == NEW


def test_a_campaign_takes_each_trial_from_the_chain_that_has_it(lab: LabRecords) -> None:
    asked = find(lab.root, "lab", lab.cache, "night")
    assert [trial.record["id"] for trial in asked.trials if trial.record] == [OLD, NEW]


def test_a_beginning_that_fits_several_is_ambiguous_and_lists_them(lab: LabRecords) -> None:
    with pytest.raises(TrisparkError, match="ambiguous") as caught:
        find(lab.root, "lab", lab.cache, "t202601")
    assert caught.value.expected == f"one of {OLD}, {NEW}"


def test_an_edited_older_record_is_refused_with_what_can_be_done(lab: LabRecords) -> None:
    path = older(lab).path(older(lab).list()[0])
    record = json.loads(path.read_text(encoding="utf-8"))
    record["bench"]["requests"][0]["total_s"] *= 2
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(TrisparkError, match="TS-REPORT-RECORD") as caught:
        find(lab.root, "lab", lab.cache, OLD)
    assert older(lab).directory.name in caught.value.where
    assert "next boot" not in caught.value.remedy
    assert find(lab.root, "lab", lab.cache, NEW).name == NEW


def lose(lab: LabRecords) -> None:
    chain = older(lab).directory
    chain.rename(chain.with_name("moved-away"))


def test_an_ended_trial_whose_records_are_gone_is_refused_and_its_report_stays(
    lab: LabRecords, verb: Callable[..., Any]
) -> None:
    assert verb("report", OLD).exit_code == 0
    page = lab.root / ".trispark" / "lab" / "reports" / f"{OLD}.html"
    right = page.read_bytes()
    lose(lab)
    refused = verb("report", OLD)
    assert refused.exit_code != 0
    assert isinstance(refused.exception, TrisparkError)
    assert refused.exception.id == "TS-REPORT-LOST"
    assert OLD in refused.exception.expected
    assert page.read_bytes() == right


def test_boots_that_the_journal_knows_of_are_missed_also_before_the_end(tmp_path: Path) -> None:
    lab = LabRecords(tmp_path)
    journal = Journal(walks_directory(tmp_path, "lab") / OLD)
    journal.write("slot_ended", "2026-01-02T03:05:00Z", slot=0, record="b1", state="valid")
    with pytest.raises(TrisparkError, match="TS-REPORT-LOST"):
        find(tmp_path, "lab", lab.cache, OLD)


def test_a_campaign_says_of_an_entry_that_its_records_are_gone(lab: LabRecords) -> None:
    lose(lab)
    first, second = find(lab.root, "lab", lab.cache, "night").entries
    assert (first.trials, [trial.key for trial in second.trials]) == ((), [NEW])
    assert "TS-REPORT-LOST" in first.reason


def test_a_walk_that_ended_before_anything_was_tried_is_not_unfinished(tmp_path: Path) -> None:
    lab = LabRecords(tmp_path)
    walked(lab, OLD, [], "the baseline does not serve")
    banner = banner_of(Material.of(find(tmp_path, "lab", lab.cache, OLD)).trials[0])
    assert (banner.verdict, banner.code) == ("NO VERDICT", "NOT TRIED")
    assert "the baseline does not serve" in banner.why


# -- records list, show, diff; compare


def test_a_record_is_found_by_id_in_all_chains_and_by_number_in_one(lab: LabRecords) -> None:
    for key, number, chain in ((OLD, None, older(lab)), (OLD[:9], None, older(lab)), (NEW, "5", lab.cache)):
        found, record = find_record(lab.cache, key)
        assert (found.directory, record["id"]) == (chain.directory, chain.show(key)["id"])
        assert number is None or find_record(lab.cache, number)[1] == record
    with pytest.raises(TrisparkError, match="ambiguous") as caught:
        find_record(lab.cache, "t2026")
    assert OLD in caught.value.expected
    assert NEW in caught.value.expected


def test_what_no_chain_has_names_the_older_directories(lab: LabRecords) -> None:
    for refused in (lambda: find_record(lab.cache, "x"), lambda: find(lab.root, "lab", lab.cache, "x")):
        with pytest.raises(TrisparkError) as caught:
            refused()
        assert older(lab).directory.name in caught.value.where
        assert "--older" in caught.value.remedy


def test_older_chains_are_the_newest_first_and_other_directories_are_none(tmp_path: Path) -> None:
    names = ["records-until-9-b20260101T000000Z-aaaa", "records-until-12-t20260102T000000Z-bbbb"]
    for name in (*names, "records-until-x", "records", "other"):
        (tmp_path / name).mkdir()
    assert [each.directory.name for each in older_caches(RecordCache(tmp_path / "records"))] == names[::-1]


def test_the_verbs_show_list_and_compare_older_records(lab: LabRecords, verb: Callable[..., Any]) -> None:
    shown = verb("records", "show", OLD, "--json")
    assert shown.exit_code == 0, shown.output
    assert older(lab).directory.name in json.loads(shown.output.splitlines()[-1])["path"]
    assert verb("records", "diff", OLD, NEW).exit_code == 0
    plain, all_of_them = verb("records", "list"), verb("records", "list", "--older")
    assert OLD not in plain.output.replace(older(lab).directory.name, "")
    assert older(lab).directory.name in plain.output
    assert f"  {OLD}  trial  " in all_of_them.output
    assert all_of_them.output.index(f"  {OLD}  ") < all_of_them.output.index(f"  {NEW}  ")


def test_boots_of_older_chains_are_chosen_by_id_and_come_first(lab: LabRecords) -> None:
    old, new = older_boot(lab), lab.cache.list()[0]
    names = f"1,{old['boot_id']}"
    assert choose_boots(names, lab.cache.list(), [older(lab).list()]) == [old, new]
    with pytest.raises(TrisparkError, match="TS-COMPARE-BOOT"):
        choose_boots(names, lab.cache.list())


@pytest.mark.parametrize("key", ["5", NEW, OLD])
def test_a_trial_is_named_as_no_boot_with_its_boots(lab: LabRecords, key: str) -> None:
    with pytest.raises(TrisparkError, match=f"is a trial and no boot.*{key}, the trial") as caught:
        choose_boots(key, lab.cache.list(), [older(lab).list()])
    assert lab.cache.show(NEW)["boots"][0]["boot_id"] in caught.value.remedy
