"""A campaign with one boot an arm: an interval for each pair, and nothing that may be kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from trispark.errors import TrisparkError
from trispark.stats_campaign import as_form, campaign_lines, compare_campaign, read_summary

DATA = Path(__file__).parent / "data"
TWINS = ("f1-final", "f2-final-reuse")


def test_nothing_of_the_fields_campaign_may_be_kept() -> None:
    arms = read_summary(DATA / "campaign.csv")
    campaign = compare_campaign(arms, TWINS)
    assert len(arms) == 10
    assert len(campaign.pairs) == 45
    assert {(pair.verdict, pair.code) for pair in campaign.pairs} == {("INCONCLUSIVE", "ONE-BOOT")}
    assert as_form(campaign)["keep"] == 0
    assert (campaign.freedom, campaign.boot_sd) == (5, pytest.approx(0.00673, abs=1e-5))


def test_the_interval_is_that_of_two_equal_boots() -> None:
    campaign = compare_campaign(read_summary(DATA / "campaign.csv"), TWINS)
    by_arms = {(pair.baseline, pair.candidate): pair for pair in campaign.pairs}
    twins = by_arms[TWINS].ratios
    assert all(low < 1 < high for _, low, high in twins.values()), "equal boots are not told apart"
    ratio, low, high = by_arms["b0-original", "f2-final-reuse"].ratios["c1-code.decode_tps"]
    assert ratio == pytest.approx(1.394, abs=1e-3)
    assert high / low == pytest.approx(1.0502, abs=1e-3), "2.571 sd, twice, of a difference of two boots"
    assert "c1-prose2.decode_tps" not in by_arms["b0-original", "f2-final-reuse"].ratios


def test_the_table_has_a_row_a_pair() -> None:
    lines = campaign_lines(compare_campaign(read_summary(DATA / "campaign.csv"), TWINS))
    rows = [line for line in lines if line.startswith("| ") and "INCONCLUSIVE (ONE-BOOT)" in line]
    assert len(rows) == 45
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "arm,tag\nx,y\n",
        "arm,tag,decode_tps_median,agg_tps_median\na,c4,,\n",
        "arm,tag,decode_tps_median,agg_tps_median\na,c4,,x\n",
        "arm,tag,decode_tps_median,agg_tps_median\na,c4,,1\n",
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "summary.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TrisparkError) as caught:
        read_summary(path)
    assert caught.value.id == "TS-STATS-SUMMARY"
    with pytest.raises(TrisparkError):
        read_summary(tmp_path / "none.csv")


@pytest.mark.parametrize("twins", [("f1-final", "f1-final"), ("f1-final", "x"), ("", "")])
def test_twins_that_are_not_there_are_refused(twins: tuple[str, str]) -> None:
    with pytest.raises(TrisparkError) as caught:
        compare_campaign(read_summary(DATA / "campaign.csv"), twins)
    assert caught.value.id == "TS-STATS-TWINS"


def test_a_value_of_the_campaign_that_is_none_is_refused() -> None:
    arms = {"a": {"c4.agg_tps": 1.0}, "b": {"c4.agg_tps": 2.0}, "c": {"c4.agg_tps": 0.0}}
    with pytest.raises(TrisparkError) as caught:
        compare_campaign(arms, ("a", "b"))
    assert caught.value.id == "TS-VERDICT-VALUE"
