"""Reports are made of records alone, say what the records say, and no text of a record becomes markup."""

from __future__ import annotations

import ast
import base64
import functools
import gzip
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_html import outline
from trial_records import REPOSITORY, LabRecords, walk_id

from trispark.boot_validity import UNPROBED
from trispark.gates import GateResult
from trispark.noise_floor import measure_noise
from trispark.records import record_hash
from trispark.report import render as render_module
from trispark.report.build import LEFT_OUT, Content, Material, build
from trispark.report.figures import LEFT, RIGHT, Scale, dots, effects
from trispark.report.measured import measured
from trispark.report.page import Cell, Figure, Figures, Page, Section, Text, tables_of
from trispark.report.render import LIMIT, markdown_code, markdown_text, report_text, script_json
from trispark.report.sources import find
from trispark.report.trial import banner_of, images_of, recomputed
from trispark.report.words import CODES, DECISIONS, effect, number, probability, shortened
from trispark.walk_plan import keep_walk, walks_directory

KEPT, REJECTED, UNSAFE, ENDED, OPEN_WALK, NO_BOOTS = (walk_id(number) for number in (2, 3, 4, 5, 6, 7))


def failing(slot: int, parts: dict[str, Any]) -> None:
    """The candidate's second boot lacks its evidence."""
    if slot == 2:
        line = "a line: The adapter acted in this process."
        parts["gates"][3] = GateResult("evidence.wo_a.present", 0, False, line, "no such line", "see the log")
        parts["outcome"] = {"state": "invalid", "reason": "evidence.wo_a.present: no such line", "good": False}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> LabRecords:
    """A site with trials of every kind, two of them after its floor was measured, and a campaign of them."""
    root = tmp_path_factory.mktemp("site")
    first = LabRecords(root)
    kept = first.trial(first.plan(2), 0.04)
    lab = LabRecords(root, noise=measure_noise("lab", first.cache.list(), kept[0]["resolved"]["baseline"]))
    lab.trial(lab.plan(3, "block_size", "5"), -0.06)
    lab.trial(lab.plan(4), 0.04, made=3, spoil=failing)
    lab.trial(lab.plan(5), 0.04, made=3, stopped="spark1 was lost")
    walk = lab.plan(6)
    for slot in walk.slots[:3]:
        lab.boot(walk, slot.slot, slot.generation, slot.arm)
    keep_walk(walks_directory(root, "lab") / NO_BOOTS, lab.plan(7))
    walks = [(KEPT, "ended"), (REJECTED, "ended"), (UNSAFE, "ended"), (OPEN_WALK, "under way"), (walk_id(9), "failed")]
    lab.campaign("night", [(f"c trial {index}", walk, state) for index, (walk, state) in enumerate(walks)])
    return lab


@pytest.fixture(scope="module")
def page(lab: LabRecords) -> Callable[[str], Page]:
    return functools.cache(lambda key: build(Material.of(find(lab.root, "lab", lab.cache, key)), Content()))


@pytest.fixture(scope="module")
def text(lab: LabRecords) -> Callable[..., str]:
    def make(key: str, form: Any = "html") -> str:
        return report_text(REPOSITORY, find(lab.root, "lab", lab.cache, key), form)

    return make


def sections(page: Page) -> dict[str, Section]:
    return {section.heading: section for section in page.sections}


def figures(page: Page) -> Iterator[Figure]:
    for section in page.sections:
        for block in section.blocks:
            if isinstance(block, Figure):
                yield block
            elif isinstance(block, Figures):
                yield from block.figures


def cells(page: Page, id: str) -> list[list[str]]:
    (table,) = [each for each in tables_of(page.sections) if each.id == id]
    return [[cell.text for cell in row] for row in table.rows]


# -- what a report says


@pytest.mark.parametrize(
    ("key", "verdict", "code", "tone", "says"),
    [
        (KEPT, "KEEP", "GAIN", "good", "better at 4+4 boots"),
        (REJECTED, "REJECT", "HARM", "bad", "worse by more than the margin"),
        (UNSAFE, "REJECT", "UNSAFE", "bad", "evidence.wo_a.present"),
        (ENDED, "INCONCLUSIVE", "ENDED", "open", "spark1 was lost"),
        (OPEN_WALK, "NO VERDICT", "UNFINISHED", "open", "3 boots have left a record"),
        (NO_BOOTS, "NO VERDICT", "UNFINISHED", "open", "No boot of it has left a record"),
    ],
)
def test_a_report_begins_with_its_verdict_whatever_came_of_the_trial(
    page: Callable[[str], Page], text: Callable[..., str], key: str, verdict: str, code: str, tone: str, says: str
) -> None:
    banner = page(key).banner
    assert (banner.verdict, banner.code, banner.tone) == (verdict, code, tone)
    assert says in banner.why
    if code in CODES:
        assert banner.sentence == f"{CODES[code]} {DECISIONS[verdict]}"
    found = outline(text(key))
    assert found.unclosed == []
    for part in (verdict, code, banner.why):
        assert part in found.text
    assert markdown_text(banner.why) in text(key, "md")


def test_before_the_verdict_no_boot_is_said_to_count(page: Callable[[str], Page]) -> None:
    """The first boot of a trial may only tune kernels, which its record does not tell."""
    assert [row[3] for row in cells(page(OPEN_WALK), "boots-table")] == ["not said yet"] * 3
    assert "Measured boots so far" in text_of(sections(page(OPEN_WALK))["Summary"])
    assert [row[3] for row in cells(page(KEPT), "boots-table")] == ["no", *["yes"] * 8, "no"]


def test_every_code_of_a_verdict_has_a_sentence() -> None:
    used = set()
    for name in ("verdict", "verdict_detail", "trial_outcome"):
        tree = ast.parse((REPOSITORY / "src" / "trispark" / f"{name}.py").read_text(encoding="utf-8"))
        constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        used |= {each for each in constants if isinstance(each, str) and re.fullmatch(r"[A-Z]+(-[A-Z]+)?", each)}
    assert used - set(DECISIONS) == set(CODES)


def test_intervals_guards_and_the_other_tests_stand_beside_each_other(
    lab: LabRecords, page: Callable[[str], Page]
) -> None:
    detail = lab.cache.show(KEPT)["outcome"]["detail"]
    rows = {row[0]: row for row in cells(page(KEPT), "effects-table")}
    beside = {row[0]: row for row in cells(page(KEPT), "beside-table")}
    assert [row[1] for row in rows.values()] == ["primary"] * 3 + ["guard"] * 2
    for each in detail["metrics"]:
        low, high = effect(each["welch"]["low"]), effect(each["welch"]["high"])
        assert rows[each["metric"]][5:7] == [effect(each["welch"]["ratio"]), f"{low} to {high}"]
        assert beside[each["metric"]][1] == effect(each["paired"]["ratio"])
        assert beside[each["metric"]][3] == effect(each["hodges_lehmann"]["ratio"])


def test_every_counted_boot_is_a_dot_of_its_arm_and_a_row_of_the_table_beside(page: Callable[[str], Page]) -> None:
    found = page(REJECTED)
    rows = cells(found, "values-table")
    metrics = [each for each in figures(found) if each.id.startswith("dots-")]
    assert (len(rows), len(metrics)) == (8, 5)
    for column, figure in enumerate(metrics, start=2):
        for arm in ("baseline", "candidate"):
            shown = [mark.text for mark in figure.marks if (mark.shape, mark.look) == ("dot", arm)]
            assert shown == [f"{row[0]}: {row[column]}" for row in rows if row[1] == arm]


def test_the_floor_of_the_site_is_a_band_where_the_plan_has_one_and_is_missed_where_not(
    page: Callable[[str], Page],
) -> None:
    for key, has in ((REJECTED, True), (KEPT, False)):
        bands = [mark for figure in figures(page(key)) for mark in figure.marks if mark.shape == "band"]
        assert len(bands) == (6 if has else 0), "three primaries in the intervals, and each one's dots"
        assert all(band.x < band.x2 for band in bands)
        said = [block.text for block in sections(page(key))["Speed"].blocks if isinstance(block, Text)]
        assert any("no floor of this site" in each for each in said) is not has


def test_what_nothing_checked_is_said_and_never_passed(page: Callable[[str], Page]) -> None:
    rows = {row[0]: row for row in cells(page(KEPT), "validity-table")}
    for rule in UNPROBED:
        assert rows[rule][1:4] == ["not checked", "4 not checked", "4 not checked"]
    assert rows["kv_pin"][1] == "passed"
    (notice,) = [block for block in sections(page(KEPT))["Validity"].blocks if isinstance(block, Text)]
    assert all(rule in notice.text for rule in UNPROBED)


def test_what_failed_on_which_rank_is_shown_before_what_held(page: Callable[[str], Page]) -> None:
    assert cells(page(UNSAFE), "failed-table") == [
        ["evidence.wo_a.present", "0", "1 of 1", "1 of 2", "a line: The adapter acted in this process.", "no such line"]
    ]
    assert cells(page(UNSAFE), "validity-table")[0][:2] == ["gates", "failed"]
    evidence = cells(page(KEPT), "evidence-table")
    assert [row[:2] for row in evidence] == [["evidence.wo_a.present", str(rank)] for rank in range(3)]
    assert all("fp8 twins" in row[3] and "no such line" in row[2] for row in evidence)


def test_changed_keys_memory_waits_and_the_way_to_repeat_it_are_there(
    lab: LabRecords, page: Callable[[str], Page]
) -> None:
    found = page(KEPT)
    assert cells(found, "changed-table") == [["DSV41_WO_A_W8", "0", "1"]]
    assert [row[:2] for row in cells(found, "memory-table")] == [[str(rank), f"spark{rank}"] for rank in range(3)]
    assert {row[0] for row in cells(found, "waits-table")} == {"c1-prose", "c1-code", "c4"}
    assert [row[0] for row in cells(found, "steps-table")] == ["c1-code", "c1-prose", "c4"]
    assert cells(found, "windows-table") == [["c4", "none", "prompt tokens"]]
    assert [row[:2] for row in cells(found, "engram-table")][:2] == [["0", "1"], ["0", "14"]]
    plan = lab.cache.show(KEPT)["resolved"]["plan"]
    assert plan == LabRecords(lab.root).plan(2).trials[0].plan
    shown = text_of(sections(found)["How to reproduce"])
    assert plan in shown
    assert "./trispark play stage_c --site lab -e feature=wo_a -e boots=6" in shown
    assert f"./trispark records replay {KEPT} --site lab" in shown


def text_of(section: Section) -> str:
    return repr(section)


def test_every_record_is_named_with_its_hash_and_can_be_downloaded_whole(
    lab: LabRecords, page: Callable[[str], Page]
) -> None:
    found = page(KEPT)
    rows = cells(found, "records-table")
    assert [row[4] for row in rows] == [record_hash(lab.cache.show(row[2])) for row in rows]
    assert rows[-1][1:3] == ["trial", KEPT]
    assert found.download is not None
    lines = gzip.decompress(base64.b64decode(found.download.base64)).splitlines()
    assert [hashlib.sha256(line).hexdigest() for line in lines] == [row[4] for row in rows]
    data = json.loads(found.data)["trials"][0]
    assert data["records"] == {row[2]: row[4] for row in rows}


def test_a_campaign_has_a_row_for_each_entry_and_no_verdict_of_its_own(
    page: Callable[[str], Page], text: Callable[..., str]
) -> None:
    found = page("night")
    rows = cells(found, "overview-table")
    assert [row[2] for row in rows] == ["KEEP", "REJECT", "REJECT", "NO VERDICT", "failed"]
    assert rows[-1][6].startswith("spark1 was lost")
    assert found.banner.why == "1 KEEP, 2 REJECT, 1 NO VERDICT, 1 without a boot"
    assert found.banner.tone == ""
    assert "1. wo_a: KEEP" in outline(text("night")).text


def test_a_verdict_is_worked_out_again_and_one_that_was_edited_is_pointed_at(lab: LabRecords) -> None:
    trial = measured(find(lab.root, "lab", lab.cache, KEPT).trials[0])
    assert recomputed(trial) == Cell("the same: KEEP GAIN", "good")
    assert trial.record is not None
    outcome = {**trial.record["outcome"], "verdict": "REJECT", "code": "HARM"}
    other = measured(type(trial.source)(KEPT, KEPT, {**trial.record, "outcome": outcome}, trial.source.judged, ()))
    assert banner_of(other).verdict == "REJECT"
    assert recomputed(other) == Cell("DIFFERS: the boots give KEEP GAIN", "bad")


# -- the file


def test_both_formats_have_every_cell_of_every_table(page: Callable[[str], Page], text: Callable[..., str]) -> None:
    html, markdown = outline(text(REJECTED)).text, text(REJECTED, "md")
    for table in tables_of(page(REJECTED).sections):
        for cell in (cell for row in table.rows for cell in row):
            assert cell.text in html
            assert (markdown_code(cell.text) if cell.code else markdown_text(cell.text)) in markdown


@pytest.mark.parametrize("key", [KEPT, UNSAFE, OPEN_WALK, NO_BOOTS, "night"])
def test_the_page_can_be_heard_and_loads_nothing(text: Callable[..., str], key: str) -> None:
    html = text(key)
    found = outline(html)
    ids = found.having("id")
    assert len(ids) == len(set(ids))
    for attribute in ("aria-labelledby", "headers"):
        assert {each for value in found.having(attribute) for each in value.split()} <= set(ids)
    names = found.names()
    assert [names.count(each) for each in ("main", "header", "nav", "footer", "h1")] == [1, 1, 1, 1, 1]
    assert names.count("caption") == names.count("table")
    assert all("scope" in attributes for name, attributes in found.tags if name == "th")
    figures = [attributes for name, attributes in found.tags if name == "svg"]
    assert all(each["role"] == "img" and each["aria-labelledby"] for each in figures)
    levels = [int(name[1]) for name in names if re.fullmatch("h[1-6]", name)]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    addresses = [*found.having("href"), *found.having("src"), *found.having("srcset")]
    assert all(each.startswith(("#", "data:")) for each in addresses)
    assert {each[1:] for each in addresses if each.startswith("#")} <= set(ids)
    style = html.split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert [attributes.get("type") for name, attributes in found.tags if name == "script"] == ["application/json"]
    assert len(html.encode()) < LIMIT


def test_the_same_records_give_the_same_bytes_in_another_process(lab: LabRecords, text: Callable[..., str]) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from trispark.records import RecordCache\n"
        "from trispark.report.render import report_text\n"
        "from trispark.report.sources import find\n"
        "root = Path(sys.argv[1]); cache = RecordCache(root / '.trispark' / 'lab' / 'records')\n"
        "for form in ('html', 'md'):\n"
        "    text = report_text(Path(sys.argv[2]), find(root, 'lab', cache, sys.argv[3]), form)\n"
        "    sys.stdout.buffer.write(text.encode('utf-8'))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    environment["LC_ALL"] = "C"
    argv = [sys.executable, "-c", script, str(lab.root), str(REPOSITORY), "night"]
    other = subprocess.run(argv, env=environment, check=True, capture_output=True).stdout
    assert other.decode("utf-8") == text("night") + text("night", "md")


HOSTILE = (
    "</script></title></style><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;<!-- {{ 7*7 }} `|*[x](y)"
)


def test_no_text_of_a_record_becomes_markup(tmp_path: Path) -> None:
    """The page of hostile records has the same elements as that of plain ones, with the texts as texts."""
    found = {}
    for name, hostile in (("plain", "plain text"), ("hostile", HOSTILE)):
        lab = LabRecords(tmp_path / name, hostile=hostile)

        def spoil(slot: int, parts: dict[str, Any], hostile: str = hostile) -> None:
            if parts["bench"] is not None:
                parts["bench"]["requests"][0]["text_sha"] = hostile
                parts["bench"]["requests"][1]["tag"] = hostile
                parts["bench"]["requests"][1]["error"] = hostile

        (record,) = lab.trial(lab.plan(2, boots=4), 0.04, made=3, stopped=f"because of {hostile}", spoil=spoil)
        lab.campaign("night", [(f"c {hostile}", KEPT, "ended"), ("d x", walk_id(9), "failed")])
        assert hostile in record["outcome"]["reason"]
        for key in (KEPT, "night"):
            asked = find(lab.root, "lab", lab.cache, key)
            found[name, key] = [report_text(REPOSITORY, asked, form) for form in ("html", "md")]
    for key in (KEPT, "night"):
        (html, markdown), (plain, plain_markdown) = found["hostile", key], found["plain", key]
        page = outline(html)
        assert page.names() == outline(plain).names()
        assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
        assert " ".join(HOSTILE.split())[:60] in page.text
        assert HOSTILE in json.dumps(page.data(), ensure_ascii=False).replace('\\"', '"')
        assert "{{ 7*7 }}" in page.text
        lines = markdown.splitlines()
        assert not [line for line in lines if "<" in line and not line.startswith(("<!-- trispark report", "    "))]
        bars = [len(re.findall(r"(?<!\\)\|", line)) for line in lines if line.startswith("|")]
        assert bars == [len(re.findall(r"(?<!\\)\|", line)) for line in plain_markdown.splitlines() if line[:1] == "|"]


@given(st.text())
def test_json_in_a_page_means_the_same_and_has_no_markup(value: str) -> None:
    written = script_json(json.dumps({"x": value}, ensure_ascii=False))
    assert json.loads(written) == {"x": value}
    assert not set("<>&") & set(written)


@given(st.text())
def test_markdown_keeps_every_text_on_one_line_and_in_its_cell(value: str) -> None:
    for written in (markdown_text(value), markdown_code(value)):
        assert len(written.splitlines()) <= 1
        assert not re.search(r"(?<!\\)(\\\\)*\|", written) or "|" not in written.replace("\\|", "")
        assert "<" not in written


# -- size


def test_a_trial_with_very_many_events_says_what_it_leaves_out_and_keeps_each_request(tmp_path: Path) -> None:
    lab = LabRecords(tmp_path, requests=150)
    lab.trial(lab.plan(2), 0.04)
    html = report_text(REPOSITORY, find(lab.root, "lab", lab.cache, KEPT), "html")
    assert len(html.encode()) < LIMIT
    found = outline(html)
    assert f"Left out here: {LEFT_OUT['archive']}." in found.text
    assert found.names().count("tr") > 8 * 150 * 6


def test_a_large_campaign_fits_and_keeps_every_verdict(lab: LabRecords) -> None:
    lab.campaign("large", [(f"c {index}", (KEPT, REJECTED)[index % 2], "ended") for index in range(45)])
    asked = find(lab.root, "lab", lab.cache, "large")
    html = report_text(REPOSITORY, asked, "html")
    found = outline(html)
    assert len(html.encode()) < LIMIT
    assert LEFT_OUT["boots"] in found.text
    assert found.text.count("worse by more than the margin at 4+4 boots") >= 22
    assert len(report_text(REPOSITORY, asked, "md").encode()) < LIMIT


def test_each_smaller_report_leaves_more_out_and_the_smallest_has_a_bound(
    lab: LabRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = find(lab.root, "lab", lab.cache, "night")
    material = Material.of(asked)
    pages = [build(material, content) for content in material.contents()]
    sizes = [len(render_module.render(REPOSITORY, page, "html").encode()) for page in pages]
    assert sizes == sorted(sizes, reverse=True)
    monkeypatch.setattr(render_module, "LIMIT", sizes[-1] + 1)
    smallest = outline(report_text(REPOSITORY, asked, "html"))
    assert all(said in smallest.text for said in LEFT_OUT.values())
    assert "NO VERDICT" in smallest.text
    monkeypatch.setattr(render_module, "LIMIT", 1000)
    with pytest.raises(Exception, match="TS-REPORT-SIZE"):
        report_text(REPOSITORY, asked, "html")


# -- figures and numbers


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=20))
def test_a_scale_keeps_the_order_and_its_ticks_lie_within(values: list[float]) -> None:
    scale = Scale.over(values)
    places = [scale.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(LEFT <= place <= RIGHT for place in places)
    ticks = scale.ticks()
    assert ticks == sorted(set(ticks))
    assert len(ticks) <= 6
    assert all(scale.low <= tick * (1 + 1e-9) and tick * (1 - 1e-9) <= scale.high for tick in ticks)


def test_a_metric_without_values_has_no_figure_and_one_arm_alone_has() -> None:
    assert dots("x", "c4.agg_tps", "higher", {"baseline": [], "candidate": []}, 0.01) is None
    figure = dots("x", "c4.agg_tps", "higher", {"baseline": [("b1", 3.0)], "candidate": []}, None)
    assert figure is not None
    assert "candidate none" in figure.description


def test_a_time_is_better_to_the_left_and_a_rate_to_the_right() -> None:
    for better, sign in (("higher", 1), ("lower", -1)):
        interval = {"ratio": 1.0, "low": 0.99, "high": 1.01, "covers": 0.95}
        metric = {"metric": "m", "better": better, "state": "open", "welch": interval, "margin": 0.03, "least": 0.02}
        marks = {mark.look: mark for mark in effects("x", [metric], {}).marks if mark.shape == "line"}
        assert (marks["least"].x - marks["zero"].x) * sign > 0 > (marks["margin"].x - marks["zero"].x) * sign


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (number(None), "none"), (number(0.30951), "0.3095"), (number(83.9), "83.9"), (number(123456.7), "123457"),
        (number(12345), "12345"), (number(True), "True"), (number("x"), "x"), (effect(0.99999999), "+0.00 %"),
        (effect(None), "none"), (effect(1.0432), "+4.32 %"), (probability(0.0), "below 0.0001"),
        (probability(None), "none"), (shortened("a\n b"), "a b"), (len(shortened("x" * 500)), 180),
    ],
)  # fmt: skip
def test_numbers_as_a_reader_sees_them(shown: object, expected: object) -> None:
    assert shown == expected


@pytest.mark.parametrize(
    ("ran", "shown"),
    [
        ([("baseline", "a"), ("candidate", "a")], [("Image", "a")]),
        ([("candidate", "b")], [("Image", "b")]),
        (
            [("candidate", "b"), ("baseline", "a"), ("candidate", "b")],
            [("Image of the baseline", "a"), ("Image of the candidate", "b")],
        ),
    ],
)
def test_the_image_of_each_arm_is_shown_where_they_differ(
    ran: list[tuple[str, str]], shown: list[tuple[str, str]]
) -> None:
    boots = [SimpleNamespace(arm=arm, record={"resolved": {"image": image}}) for arm, image in ran]
    assert [(name, cell.text) for name, cell in images_of(boots)] == shown  # type: ignore[arg-type]
