"""Reports in a real Chromium: nothing is loaded, nothing complains, everything can be read and reached by keyboard.

`TRISPARK_PICTURES=DIR` keeps the pictures that are taken.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from chromium import Tab, chromium, tab
from trial_records import REPOSITORY, LabRecords, walk_id

from trispark.gates import GateResult
from trispark.noise_floor import measure_noise
from trispark.report.render import report_text
from trispark.report.sources import find

pytestmark = pytest.mark.slow
PAGES = ("harm", "unsafe", "unfinished", "night")
DESKTOP, PHONE = 1280, 390
TEXT_CONTRAST = 4.5
DRAWING_CONTRAST = 3.0

COLOURS = """(() => {
  const parts = text => text.match(/[0-9.]+/g).map(Number);
  const light = text => { const c = parts(text).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2]; };
  const ratio = (a, b) => {
    const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const behind = element => { for (let each = element; each; each = each.parentElement) {
    const found = getComputedStyle(each).backgroundColor;
    if (parts(found).length < 4 || parts(found)[3] > 0) return found; } return 'rgb(255, 255, 255)'; };
  const texts = {}, drawings = {};
  const note = (into, name, value) => { into[name] = Math.min(into[name] ?? 99, value); };
  const floor = document.querySelector('rect.floor');
  for (const each of document.querySelectorAll('body *')) {
    const style = getComputedStyle(each), name = `${each.tagName} ${each.getAttribute('class') ?? ''} ${style.color}`;
    if (['line', 'circle'].includes(each.tagName)) {
      const look = each.getAttribute('class');
      if (look === 'tick') continue;
      const paint = each.tagName === 'line' || look === 'baseline' ? style.stroke : style.fill;
      for (const ground of [behind(each), ...(floor ? [getComputedStyle(floor).fill] : [])])
        note(drawings, `${each.tagName} ${look}`, ratio(paint, ground));
    } else if ([...each.childNodes].some(node => node.nodeType === 3 && node.data.trim())
        && !['SCRIPT', 'STYLE', 'title', 'desc'].includes(each.tagName)) {
      const paint = each.tagName === 'text' ? style.fill : style.color;
      note(texts, name, ratio(paint, behind(each)));
      if (each.tagName === 'text' && floor) note(texts, name, ratio(paint, getComputedStyle(floor).fill));
    }
  }
  return [texts, drawings];
})()"""
LABELS = """[...document.querySelectorAll('svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
  const outside = boxes.filter(([, box]) => box.left < 0 || box.right > innerWidth).map(([text]) => `${text} outside`);
  const over = boxes.flatMap(([text, a], place) => boxes.slice(place + 1)
    .filter(([, b]) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)
    .map(([other]) => `${svg.id}: ${text} over ${other}`));
  return [...outside, ...over];
})"""
REACHED = """(() => { const found = document.activeElement, box = found.getBoundingClientRect();
  const style = getComputedStyle(found), all = [...document.querySelectorAll('*')];
  return {place: all.indexOf(found), tag: found.tagName, text: found.textContent.trim().slice(0, 40), width: box.width,
    outline: style.outlineStyle === 'none' ? 0 : parseFloat(style.outlineWidth), left: box.left}; })()"""


def failing(slot: int, parts: dict[str, Any]) -> None:
    if slot == 2:
        parts["gates"][3] = GateResult("evidence.wo_a.present", 0, False, "a line", "no such line", "see the log")
        parts["outcome"] = {"state": "invalid", "reason": "evidence.wo_a.present: no such line", "good": False}


@pytest.fixture(scope="module")
def browser() -> str:
    program = chromium()
    if program is None:
        pytest.skip("NOT TESTED in a browser: there is no chromium (apt-get install chromium)")
    return program


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Address of a report of each kind."""
    root = tmp_path_factory.mktemp("site")
    first = LabRecords(root)
    kept = first.trial(first.plan(2), 0.04)
    lab = LabRecords(root, noise=measure_noise("lab", first.cache.list(), kept[0]["resolved"]["baseline"]))
    lab.trial(lab.plan(3, "block_size", "5"), -0.06)
    lab.trial(lab.plan(4), 0.04, made=3, spoil=failing)
    walk = lab.plan(5)
    for slot in walk.slots[:2]:
        lab.boot(walk, slot.slot, slot.generation, slot.arm)
    states = [(2, "ended"), (3, "ended"), (4, "ended"), (5, "under way"), (6, "failed")]
    lab.campaign("night", [(f"c trial {number}", walk_id(number), state) for number, state in states])
    found = {}
    for name, key in (("harm", walk_id(3)), ("unsafe", walk_id(4)), ("unfinished", walk_id(5)), ("night", "night")):
        path = root / f"{name}.html"
        path.write_text(report_text(REPOSITORY, find(root, "lab", lab.cache, key), "html"), encoding="utf-8")
        found[name] = path.as_uri()
    return found


@pytest.fixture
def visit(browser: str, reports: dict[str, str], tmp_path: Path) -> Callable[..., None]:
    """Opens a report in a fresh browser and does something there."""

    def run(name: str, act: Callable[[Tab], Awaitable[None]], width: int = DESKTOP) -> None:
        async def there() -> None:
            async with tab(browser, tmp_path / "profile") as found:
                await found.window(width, phone=width == PHONE)
                await found.open(reports[name])
                await act(found)
                assert found.errors == []
                assert found.requests == [reports[name]], "the page itself and nothing else"

        asyncio.run(there())

    return run


@pytest.mark.parametrize("name", PAGES)
def test_a_report_is_whole_readable_and_asks_for_nothing(visit: Callable[..., None], tmp_path: Path, name: str) -> None:
    pictures = Path(os.environ.get("TRISPARK_PICTURES", str(tmp_path)))

    async def look(page: Tab) -> None:
        says = {
            "harm": "REJECT", "unsafe": "REJECT", "unfinished": "NO VERDICT", "night": "4 trials",
        }  # fmt: skip
        assert await page.value("document.querySelector('.verdict strong').innerText") == says[name]
        assert await page.value("document.querySelectorAll('main table').length") > 5
        assert await page.value("JSON.parse(document.getElementById('report-data').textContent).schema_version") == 1
        for dark in (False, True):
            for width in (DESKTOP, PHONE):
                await page.window(width, dark=dark, phone=width == PHONE)
                place = f"{name} at {width}{' dark' if dark else ''}"
                assert await page.value("document.documentElement.scrollWidth") <= width, place
                assert await page.value(LABELS) == [], place
                texts, drawings = await page.value(COLOURS)
                assert {each: ratio for each, ratio in texts.items() if ratio < TEXT_CONTRAST} == {}, place
                assert {each: ratio for each, ratio in drawings.items() if ratio < DRAWING_CONTRAST} == {}, place
                target = pictures / f"{name}-{width}{'-dark' if dark else ''}.png"
                await page.picture(target)
                height = await page.value("document.documentElement.scrollHeight")
                scale = 2 if width == PHONE else 1
                assert struct.unpack(">II", target.read_bytes()[16:24]) == (width * scale, height * scale), place
        light, dark_one = (pictures / f"{name}-{DESKTOP}{end}.png" for end in ("", "-dark"))
        assert light.read_bytes() != dark_one.read_bytes()

    visit(name, look)


def test_wide_tables_scroll_in_their_own_box_on_a_phone(visit: Callable[..., None]) -> None:
    async def look(page: Tab) -> None:
        boxes = "[...document.querySelectorAll('.scroll')].filter(each => each.scrollWidth > each.clientWidth)"
        assert await page.value(f"{boxes}.length") >= 3
        assert await page.value(f"{boxes}.every(each => each.getBoundingClientRect().right <= innerWidth)")
        moved = await page.value(f"(() => {{ const box = {boxes}[0]; box.scrollLeft = 50; return box.scrollLeft; }})()")
        assert moved == 50

    visit("harm", look, PHONE)


def test_everything_is_reached_by_keyboard_in_the_order_in_which_it_is_read(visit: Callable[..., None]) -> None:
    async def walk(page: Tab) -> None:
        reached: list[dict[str, Any]] = []
        for _ in range(200):
            await page.press("Tab", 9)
            found = await page.value(REACHED)
            if found["tag"] == "BODY" or (reached and found["place"] <= reached[-1]["place"]):
                break
            reached.append(found)
        assert reached[0]["text"] == "Skip to the report"
        assert reached[0]["left"] >= 0, "it is seen once it has the focus"
        assert all(each["outline"] >= 2 for each in reached), "where the focus is can be seen"
        assert all(each["width"] > 0 for each in reached)
        places = "[...document.querySelectorAll('a, summary, [tabindex=\"0\"]')]"
        wanted = await page.value(f"{places}.filter(each => each.checkVisibility()).length")
        assert len(reached) == wanted

    visit("harm", walk)


def test_the_skip_link_leads_to_the_report_and_folded_tables_open_by_key(visit: Callable[..., None]) -> None:
    async def press(page: Tab) -> None:
        await page.press("Tab", 9)
        await page.press("Enter", 13)
        assert await page.value("document.activeElement.id") == "main"
        assert await page.value("document.querySelectorAll('details[open]').length") == 0
        await page.value("document.querySelector('summary').focus()")
        await page.press("Enter", 13)
        assert await page.value("document.querySelectorAll('details[open] table').length") == 1

    visit("harm", press)


def test_what_a_screen_reader_gets_has_names(visit: Callable[..., None]) -> None:
    """The tree that the browser hands to assistive software: every figure, table and box has a name."""

    async def look(page: Tab) -> None:
        await page.call("Accessibility.enable")
        nodes = (await page.call("Accessibility.getFullAXTree"))["nodes"]
        names: dict[str, list[str]] = {}
        for node in nodes:
            if not node.get("ignored"):
                role = node["role"]["value"]
                names.setdefault(role, []).append(str(node.get("name", {}).get("value", "")))
        for role in ("image", "table", "region", "navigation", "link", "heading", "rowheader", "columnheader"):
            assert names.get(role), role
            assert all(names[role]), role
        assert len(names["main"]) == len(names["banner"]) == len(names["contentinfo"]) == 1

    visit("harm", look)
