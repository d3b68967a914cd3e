"""The timelines of the site against their files, in a real Chromium: ``-m site``."""

from __future__ import annotations

import html
import itertools
import json
import re

import pytest

from conftest import DESK, PHONE
from draw_traces import FOLDER, STEPS, packed
from lessons import ROOT
from mgpu_helpers import charts
from mgpu_helpers.charts import base
from mgpu_helpers.trace import Op, Trace
from mgpu_helpers.trace.records import Copy
from test_browser import browser  # noqa: F401, a fixture

pytestmark = pytest.mark.site

PAGE = ROOT / "build" / "site" / "docs" / "traces.html"
SCRIPT = ROOT / "build" / "site" / "_static" / "traces.js"
SOURCE = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")
NAMES = re.findall(r"\]\(traces/(\w+)\.png\)", SOURCE)  # in the order of the page
STORED = {name: json.loads((FOLDER / f"{name}.json").read_text()) for name in NAMES}
# Where the blocks of a timeline are drawn, and its marks: their texts and places, in pixels
FRAME = """box => { // of an svg in another the browser gives where its content is
    const outer = box.querySelector("svg").getBoundingClientRect();
    const of = name => Number(box.querySelector("svg svg").getAttribute(name));
    return { x: outer.x + of("x"), y: outer.y, width: of("width"), height: of("height") };
}"""
DRAWN = f"""box => {{
    const frame = ({FRAME})(box);
    const marks = [...box.querySelectorAll(".axis text")].slice(0, -1).map((one, i) => [
        Number(one.textContent), box.querySelectorAll(".axis line")[i].getBoundingClientRect().x]);
    return {{ ...frame, marks }};
}}"""
# Touch a timeline with fingers: each a list of places, in shares of its width
TOUCH = f"""([box, fingers]) => {{
    const plot = box.querySelector("svg svg"), place = ({FRAME})(box);
    const send = (kind, i, share) => plot.dispatchEvent(new PointerEvent(kind, {{ pointerId: i,
        pointerType: "touch", bubbles: true, clientX: place.x + share * place.width,
        clientY: place.y + 5 }}));
    fingers.forEach((shares, i) => send("pointerdown", i, shares[0]));
    for (let k = 1; k < fingers[0].length; k++)
        fingers.forEach((shares, i) => send("pointermove", i, shares[k]));
    fingers.forEach((shares, i) => send("pointerup", i, shares.at(-1)));
}}"""


def timeline(page, name: str):
    box = page.locator(".timeline").nth(NAMES.index(name))
    box.scroll_into_view_if_needed()
    return box


def shown(box) -> tuple[float, float]:
    """Read which range a timeline says it shows, and see that its marks stand where they should."""
    start, end = map(float, re.findall(r"[\d.]+", box.locator(".buttons span").inner_text())[:2])
    drawn = box.evaluate(DRAWN)
    assert len(drawn["marks"]) >= 2
    for moment, x in drawn["marks"]:
        wanted = drawn["x"] + (moment - start) / (end - start) * drawn["width"]
        assert x == pytest.approx(wanted, abs=1.5 + 1e-3 / (end - start) * drawn["width"])
    return start, end


def point(page, box, step: dict, block: list) -> None:
    """Move the mouse to where a block of a file has to be."""
    row, lane, _, _, start, length, _ = block
    (left, right), drawn, lanes = shown(box), box.evaluate(DRAWN), step["rows"][row]["lanes"]
    x = drawn["x"] + (start + length / 2 - left) / (right - left) * drawn["width"]
    high = row + 0.12 + 0.76 * (lane + 0.47) / lanes
    page.mouse.move(x, drawn["y"] + high / len(step["rows"]) * drawn["height"])


def sentence(step: dict, block: list) -> str:
    row, _, name, kind, start, length, _ = block
    device = step["rows"][row]["device"]
    return f"{name} ({kind}) on {device}: starts at {start:.3f} ms, takes {length:.3f} ms"


def same(said: str, wanted: str) -> bool:
    """Compare two sentences; a half may be rounded up or down."""
    number = r"\d+\.\d{3}"
    values, others = ([float(each) for each in re.findall(number, text)] for text in (said, wanted))
    close = values == pytest.approx(others, abs=1.1e-3)
    return close and re.sub(number, "", said) == re.sub(number, "", wanted)


@pytest.mark.parametrize("size", [DESK, PHONE])
@pytest.mark.parametrize("name", NAMES)
def test_the_block_pointed_at_is_that_of_the_file(page, name: str, size: dict):
    page.set_viewport_size(size)
    box, step = timeline(page, name), STORED[name]
    by_length = sorted(step["blocks"], key=lambda block: -block[5])
    longest = [[block for block in by_length if block[0] == row][:6] for row in (1, 2)]
    for block in itertools.chain(*longest):
        point(page, box, step, block)
        assert same(box.get_by_role("status").inner_text(), sentence(step, block))
        assert box.locator(".said").count() == 1


def test_a_short_block_is_found_when_zoomed(page):
    step, box = STORED["pipeline"], timeline(page, "pipeline")
    middle = len(step["blocks"]) // 2
    block = min(step["blocks"][middle - 20 : middle + 20], key=lambda each: each[5])
    at = block[4] + block[5] / 2
    box.locator("svg[tabindex]").focus()
    while (range_ := shown(box))[1] - range_[0] > 60 * block[5] + 0.011:
        for key, past in (("ArrowRight", at - range_[1]), ("ArrowLeft", range_[0] - at)):
            if past > 0:
                page.keyboard.press(key)
        start, end = shown(box)
        drawn = box.evaluate(DRAWN)
        page.mouse.move(drawn["x"] + (at - start) / (end - start) * drawn["width"], drawn["y"] + 3)
        page.mouse.wheel(0, -200)
        page.wait_for_function("([one, was]) => one.textContent !== was", arg=[
            box.locator(".buttons span").element_handle(),
            f"{start:.3f} ms to {end:.3f} ms of {step['length']:.3f} ms"])  # fmt: skip
    point(page, box, step, block)
    assert same(box.get_by_role("status").inner_text(), sentence(step, block))


def test_keys_and_buttons_zoom_and_move(page):
    box, whole = timeline(page, "two_towers"), STORED["two_towers"]["length"]
    box.locator("svg[tabindex]").focus()
    wanted = [
        ("+", "Zoom in", 0.25, 0.75), ("+", "Zoom in", 0.375, 0.625),
        ("ArrowRight", "Later", 0.4375, 0.6875), ("ArrowLeft", "Earlier", 0.375, 0.625),
        ("-", "Zoom out", 0.25, 0.75), ("ArrowLeft", "Earlier", 0.125, 0.625),
        ("ArrowLeft", "Earlier", 0, 0.5), ("ArrowLeft", "Earlier", 0, 0.5),
        ("0", "Whole step", 0, 1), ("-", "Zoom out", 0, 1),
    ]  # fmt: skip
    for key, _, start, end in [*wanted, *wanted]:
        page.keyboard.press(key)
        assert shown(box) == pytest.approx((start * whole, end * whole), abs=2e-3), key
    for _, button, start, end in wanted:
        box.get_by_role("button", name=button).click()
        assert shown(box) == pytest.approx((start * whole, end * whole), abs=2e-3), button
    box.locator("svg[tabindex]").focus()
    for _ in range(40):
        page.keyboard.press("=")
    start, end = shown(box)
    assert end - start == pytest.approx(0.01, abs=2e-3)
    page.keyboard.press("Control+0")
    assert shown(box) == (start, end)  # the browser's own keys stay its own


def test_fingers_pinch_and_drag(page):
    box, whole = timeline(page, "split_model"), STORED["split_model"]["length"]
    handle = box.element_handle()
    page.evaluate(TOUCH, [handle, [[0.4, 0.35, 0.2], [0.6, 0.7, 0.8]]])  # 20 % of the width to 60 %
    assert shown(box) == pytest.approx((whole / 3, whole * 2 / 3), abs=2e-3)
    page.evaluate(TOUCH, [handle, [[0.9, 0.6, 0.3]]])
    assert shown(box) == pytest.approx((whole * 1.6 / 3, whole * 2.6 / 3), abs=2e-3)
    page.evaluate(TOUCH, [handle, [[0.2, 0.45], [0.8, 0.55]]])
    assert shown(box) == pytest.approx((0, whole), abs=2e-3)


def test_the_wheel_scrolls_the_page_until_a_timeline_is_clicked(page):
    box, whole = timeline(page, "two_towers"), STORED["two_towers"]["length"]
    drawn = box.evaluate(DRAWN)
    at = drawn["x"] + 0.25 * drawn["width"], drawn["y"] + 4
    page.mouse.move(*at)
    page.mouse.wheel(0, 100)
    page.wait_for_function("() => scrollY > 0")
    assert shown(box) == (0, pytest.approx(whole, abs=1e-3))
    drawn = box.evaluate(DRAWN)
    page.mouse.click(drawn["x"] + 0.25 * drawn["width"], drawn["y"] + 4)
    page.mouse.wheel(0, -200)
    page.wait_for_function("one => !one.textContent.startsWith('0.000')",
                           arg=box.locator(".buttons span").element_handle())  # fmt: skip
    assert shown(box) == pytest.approx((whole / 8, whole * 5 / 8), abs=whole / 500)


@pytest.mark.parametrize("name", NAMES)
def test_the_keyboard_goes_from_block_to_block(page, name: str):
    box, step = timeline(page, name), STORED[name]
    status = box.get_by_role("status")
    box.locator("svg[tabindex]").focus()
    wide = [block for block in step["blocks"] if block[5] >= step["length"] / 200]
    for block in wide[:10]:
        page.keyboard.press("ArrowDown")
        assert same(status.inner_text(), sentence(step, block))
    page.keyboard.press("ArrowUp")
    assert same(status.inner_text(), sentence(step, wide[:10][-2]))
    for _ in range(2):
        page.keyboard.press("+")
    for _ in range(9):
        page.keyboard.press("ArrowRight")  # to the end, where the block is out of sight
    start, end = shown(box)
    page.keyboard.press("ArrowUp")
    seen = [b for b in step["blocks"] if b[4] < end and b[5] >= step["length"] / 800]
    assert same(status.inner_text(), sentence(step, seen[-1]))
    for _ in range(3):
        page.keyboard.press("+")
    for _ in range(40):  # it brings into sight what it names
        page.keyboard.press("ArrowUp")
        start, end = shown(box)
        named = float(re.search(r"starts at ([\d.]+)", status.inner_text())[1])
        takes = float(re.search(r"takes ([\d.]+)", status.inner_text())[1])
        assert named < end + 2e-3 and named + takes > start - 2e-3


@pytest.mark.parametrize("name", NAMES)
def test_rows_colours_copies_mode_and_machine_are_those_of_the_file(page, name: str):
    box, step = timeline(page, name), STORED[name]
    assert box.locator(".corner").inner_text() == step["corner"]
    assert "mode · 2 devices · " in step["corner"]
    assert box.locator(".axis text").last.text_content() == "time in the step, ms"
    texts = box.locator("svg > text:not(.busy)").all_text_contents()
    assert texts == [row["device"] for row in step["rows"]]
    for i, row in enumerate(step["rows"]):
        drawn = box.locator(f"rect.{row['colour']}").all()
        assert len(drawn) == sum(block[0] == i for block in step["blocks"])
        if drawn:
            colour = drawn[0].evaluate("one => getComputedStyle(one).getPropertyValue('--device')")
            assert colour.strip() == base.colour(row["device"])
    assert box.locator("rect").count() == len(step["blocks"])
    large = [copy for copy in step["copies"] if copy[3] >= 1000]
    assert box.locator("svg svg line").count() == len(large) > 0
    box.locator("svg svg line").first.dispatch_event("pointerover")
    source, target, tensor, size, *_ = large[0]
    names = [step["rows"][i]["device"] for i in (source, target)]
    said = f"Copy of {tensor}, {size:,} bytes, from {names[0]} to {names[1]}: starts at"
    assert said in box.get_by_role("status").inner_text()


def test_without_scripts_the_pictures_are_there(browser):  # noqa: F811
    for size in (DESK, PHONE):
        context = browser.new_context(java_script_enabled=False, viewport=size)
        page = context.new_page()
        page.goto(PAGE.as_uri())
        pictures = page.locator("article img").all()
        names = [re.search(r"([a-z_]+)\d*\.png", each.get_attribute("src"))[1] for each in pictures]
        assert names == NAMES
        assert all(each.is_visible() and each.bounding_box()["height"] > 100 for each in pictures)
        context.close()


def test_each_step_is_stored_and_small_and_copied_as_it_is():
    assert sorted(NAMES) == sorted(STEPS) == sorted(path.stem for path in FOLDER.glob("*.json"))
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r'<script class="trace" type="application/json">(.+?)</script>', text, re.S)
    assert found == [(FOLDER / f"{name}.json").read_text(encoding="utf-8") for name in NAMES]
    assert all(path.stat().st_size < 200_000 for path in FOLDER.iterdir())
    for name, step in STORED.items():
        number = STEPS[name][0]
        part = SOURCE[: SOURCE.index(f"traces/{name}.png")].rpartition("## ")[2]
        assert f"](../notebooks/{number}_" in part  # its lesson
        assert [block[4] for block in step["blocks"]] == sorted(b[4] for b in step["blocks"])
    assert PAGE.stat().st_size + SCRIPT.stat().st_size < 400_000
    assert not any(word in SCRIPT.read_text() for word in ("fetch(", "XMLHttp", "localStorage"))
    assert html.unescape(text).count('src="../_static/traces.js"') == 1


def test_a_step_is_packed_with_its_rows_lanes_and_direction():
    ops = (
        Op("layer/MatMul", "MatMul", "/CPU:1", 0.0, 0.002),
        Op("gradient_tape/layer/MatMul", "MatMul", "/CPU:1", 0.001, 0.003),
        Op("mean", "AddN", "/CPU:0", 0.004, 0.001),
    )
    step = Trace(ops, (Copy("x", "/CPU:1", "/CPU:0", 4000, 0.002, 0.002),), {}, ())
    made = json.loads(packed(step, "a machine"))
    assert made == {
        "corner": "a machine", "length": 5.0,
        "rows": [{"device": "/CPU:0", "colour": "host", "busy": 0.2, "lanes": 1},
                 {"device": "/CPU:1", "colour": "d0", "busy": 0.8, "lanes": 2}],
        "blocks": [[1, 0, "layer/MatMul", "MatMul", 0.0, 2.0, 0],
                   [1, 1, "gradient_tape/layer/MatMul", "MatMul", 1.0, 3.0, 1],
                   [0, 0, "mean", "AddN", 4.0, 1.0, 0]],
        "copies": [[1, 0, "x", 4000, 2.0, 2.0]],
    }  # fmt: skip
    assert all(hasattr(charts, chart) for _, chart, *_ in STEPS.values())
