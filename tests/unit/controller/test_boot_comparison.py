"""Two groups of recorded boots side by side: intervals from boots, refusals, and never a verdict."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from trial_records import LabRecords

from trispark.boot_comparison import BootComparison, choose_boots, compare_boots
from trispark.cli.compare import NO_VERDICT, comparison_lines
from trispark.errors import TrisparkError
from trispark.noise_floor import measure_noise
from trispark.trial_metrics import boot_metrics

RATE = "c1-prose.decode_tps"
Record = dict[str, Any]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    lab = LabRecords(tmp_path_factory.mktemp("comparison"), requests=2)
    lab.trial(lab.plan(boots=4), gain=0.06)
    return list(lab.cache.list())


@pytest.fixture
def arms(records: list[Record]) -> tuple[list[Record], list[Record]]:
    boots = [each for each in records if each["kind"] == "boot" and each["bench"]]
    return (
        [each for each in boots if each["requested"]["arm"] == "baseline"],
        [each for each in boots if each["requested"]["arm"] == "candidate"],
    )


def edited(record: Record, change: Callable[[Record], object]) -> Record:
    found = copy.deepcopy(record)
    change(found)
    return found


def test_the_interval_is_that_of_welch_over_boots(arms: tuple[list[Record], list[Record]]) -> None:
    found = compare_boots(*arms).metrics[RATE]
    first, second = ([math.log(boot_metrics(each).metrics[RATE]) for each in arm] for arm in arms)
    wanted = stats.ttest_ind(second, first, equal_var=False).confidence_interval(0.95)
    assert found.low == pytest.approx(math.exp(wanted.low))
    assert found.high == pytest.approx(math.exp(wanted.high))
    assert found.ratio == pytest.approx(math.exp(sum(second) / len(second) - sum(first) / len(first)))


def test_single_boots_have_no_interval_and_the_sites_noise_beside_them(
    arms: tuple[list[Record], list[Record]],
) -> None:
    noise = measure_noise("lab", arms[0])
    found = compare_boots(arms[0][:1], arms[1][:1], noise).metrics[RATE]
    assert (found.low, found.high) == (None, None)
    assert found.sd == noise.metrics[RATE].sd
    assert found.ratio == pytest.approx(found.second / found.first)


def test_equal_boots_have_no_interval_of_no_width(arms: tuple[list[Record], list[Record]]) -> None:
    twins = [edited(arms[0][0], lambda boot, name=name: boot.update(boot_id=name)) for name in "abcd"]
    found = compare_boots(twins[:2], twins[2:]).metrics[RATE]
    assert (found.ratio, found.low, found.high) == (1.0, None, None)


def test_what_else_differs_is_named_and_nothing_is_decided(arms: tuple[list[Record], list[Record]]) -> None:
    found = compare_boots(*arms)
    lines = list(comparison_lines(found))
    assert any("DSV41_WO_A_W8" in line for line in lines)
    assert lines[-1] == NO_VERDICT
    assert not any(word in line for line in lines for word in ("KEEP", "REJECT"))


def test_a_boot_that_is_not_valid_is_left_out_by_name(arms: tuple[list[Record], list[Record]]) -> None:
    bad = edited(arms[1][0], lambda boot: boot["outcome"].update(state="invalid"))
    found = compare_boots(arms[0], [bad, *arms[1][1:]])
    assert found.left_out == {bad["boot_id"]: "not valid"}
    assert bad["boot_id"] not in found.second
    assert f"left out: {bad['boot_id']} (not valid)" in comparison_lines(found)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda boot: boot["bench"]["input"].update(max_tokens=65), "TS-VERDICT-PROTOCOL"),
        (lambda boot: boot["bench"]["input"]["workloads"].update(prose=["0" * 64]), "TS-VERDICT-CORPUS"),
        (lambda boot: boot.update(bench=None), "TS-COMPARE-EMPTY"),
    ],
)
def test_groups_that_did_other_work_are_refused(
    arms: tuple[list[Record], list[Record]], change: Callable[[Record], object], wanted: str
) -> None:
    with pytest.raises(TrisparkError) as refused:
        compare_boots(arms[0], [edited(each, change) for each in arms[1]])
    assert refused.value.id == wanted


def test_a_boot_in_both_groups_is_refused(arms: tuple[list[Record], list[Record]]) -> None:
    with pytest.raises(TrisparkError) as refused:
        compare_boots(arms[0], [*arms[1], arms[0][0]])
    assert refused.value.id == "TS-VERDICT-BOOT"


def test_boots_are_chosen_by_number_id_or_generation(records: list[Record], arms: Any) -> None:
    one, two = arms[0][:2]
    assert choose_boots(f"{two['seq']}, {one['boot_id']}", records) == [one, two]
    assert choose_boots(arms[1][0]["resolved"]["generation"], records) == arms[1]


@pytest.mark.parametrize("names", ["", "1,", "999", "t20260102T030405Z-a1b2", "g0000000000000000"])
def test_what_is_no_boot_is_refused(records: list[Record], names: str) -> None:
    with pytest.raises(TrisparkError) as refused:
        choose_boots(names, records)
    assert refused.value.id == "TS-COMPARE-BOOT"


def test_without_any_boot_the_line_says_how_to_begin() -> None:
    with pytest.raises(TrisparkError) as refused:
        choose_boots("1", [])
    assert "./trispark play stage_a" in refused.value.remedy


def test_json_form_holds_every_metric(arms: tuple[list[Record], list[Record]]) -> None:
    found: BootComparison = compare_boots(*arms)
    assert set(found.as_dict()["metrics"]) == set(found.metrics) >= {RATE, "c4.agg_tps", "c1-prose.step_s"}


def test_the_verb_prints_it_from_the_records_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from typer.testing import CliRunner

    from trispark.cli import verb
    from trispark.cli.app import app

    lab = LabRecords(tmp_path, requests=2)
    lab.trial(lab.plan(boots=4), gain=0.06)
    (tmp_path / "inventory" / "lab").mkdir(parents=True)
    monkeypatch.setattr(verb, "REPO", tmp_path)
    result = CliRunner().invoke(app, ["compare", "1", "2", "--site", "lab"])
    assert result.exit_code == 0, result.output
    assert RATE in result.output
    assert NO_VERDICT in result.output
