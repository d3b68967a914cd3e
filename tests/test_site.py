"""Every page of the site in a real Chromium, from disk: ``-m site``; `make site` builds it."""

from __future__ import annotations

import csv
import hashlib
import html
import inspect
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote_plus, unquote, urlsplit

import pytest

from build_site import draws, public
from conftest import DESK, PHONE
from lessons import NOTEBOOKS, ROOT
from test_browser import browser  # noqa: F401, a fixture

pytestmark = pytest.mark.site

SITE = ROOT / "build" / "site"
PAGES = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html"))
MOST_OF_ALL, MOST_OF_A_PAGE = 15_000_000, 2_000_000  # bytes

PICTURES = """() => [...document.querySelectorAll('article img')].map(one => ({
    name: one.getAttribute('src').slice(0, 80), alt: one.alt, drawn: one.naturalWidth > 0}))"""
CUT = """() => [...document.querySelectorAll('.cell_output pre')]
    .filter(one => one.scrollWidth > one.clientWidth).map(one => one.innerText.slice(0, 40))"""
OVER = "() => document.documentElement.scrollWidth - innerWidth"
DRAWN_IN = "() => Math.round(performance.getEntriesByType('navigation')[0].loadEventEnd)"


HITS = "#search-results .search li > a"
MARKS = "~mgpu_helpers", "~typing", "&lt;factory", "{py:obj}"  # that nobody read
PLACES = str(ROOT), sys.prefix, f"{Path.home()}/", ' at</span> <span class="pre">0x'


@pytest.fixture
def tab(browser):  # noqa: F811
    page = browser.new_page(viewport=DESK)
    yield page
    page.close()


def complaints(page, path: Path) -> Iterator[str]:
    """Open a page and say what is wrong with it, on a desk and on a phone."""
    said, asked = [], []
    page.on("console", lambda one: said.append(f"console: {one.text}") if one.type == "error"
            else None)  # fmt: skip
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("requestfailed", lambda one: said.append(f"not there: {one.url}"))
    page.on("request", lambda one: asked.append(one.url))
    page.goto(path.as_uri())
    page.wait_for_load_state("networkidle")
    yield from said
    yield from (f"asks for {url}" for url in asked if not url.startswith(("file:", "data:")))
    for picture in page.evaluate(PICTURES):
        if not picture["drawn"]:
            yield f"not drawn: {picture['name']}"
        if not picture["alt"].strip(" ."):
            yield f"without words: {picture['name']}"
    yield from (f"cut off: {text}" for text in page.evaluate(CUT))
    files = {Path(unquote(urlsplit(url).path)) for url in asked if url.startswith("file:")}
    if (size := sum(file.stat().st_size for file in files if file.is_file())) > MOST_OF_A_PAGE:
        yield f"large: {size} bytes"
    print(f"{path.name}: {size} bytes, drawn in {page.evaluate(DRAWN_IN)} ms")
    page.set_viewport_size(PHONE)
    if (over := page.evaluate(OVER)) > 0:
        yield f"wide: {over} pixels over"
    text = path.read_text(encoding="utf-8")
    yield from (f"names {each}" for each in (*PLACES, *MARKS) if each in text)


def found(page) -> list[str]:
    """Wait until a search has ended, and list the pages that it found."""
    page.wait_for_function("() => /finished|did not match/.test(document.body.innerText)")
    return page.locator(HITS).evaluate_all("all => all.map(one => one.href)")


def test_the_site_is_built_and_small():
    assert PAGES, "there is no build/site: make site"
    assert {f"notebooks/{path.stem}.html" for path in NOTEBOOKS.glob("*.ipynb")} < {*PAGES}
    assert sum(path.stat().st_size for path in SITE.rglob("*") if path.is_file()) < MOST_OF_ALL


def test_every_chart_of_the_reference_has_a_picture():
    page = (SITE / "api" / "charts.html").read_text(encoding="utf-8")
    functions = {name: each for name, each in public("charts").items() if inspect.isfunction(each)}
    drawn = [name for name, each in functions.items() if draws(each)]
    assert [name for name in drawn if f"_images/{name}.png" not in page] == []
    assert {"blame", "held", "timeline"} <= {*drawn}


@pytest.mark.parametrize("name", PAGES)
def test_page_opens_from_disk(tab, name: str):
    assert list(complaints(tab, SITE / name)) == []


BAD = {
    "error: nothing is not defined": "<script>nothing()</script>",
    "console: oh": "<script>console.error('oh')</script>",
    "not there: .*lost.css": "<link rel=stylesheet href=lost.css>",
    "asks for http://127.0.0.1:9/x.png": "<img alt=x src=http://127.0.0.1:9/x.png>",
    "not drawn: lost.png": "<article><img alt=x src=lost.png></article>",
    "without": "<article><img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='></article>",
    "cut off": f"<div class=cell_output><pre style='overflow: auto'>{'so' * 999}</pre></div>",
    "large: 20..... bytes": f"<!-- {'x' * MOST_OF_A_PAGE} -->",
    "wide: .* pixels over": "<pre style='width: 500px'>x</pre>",
    **{f"names {re.escape(text)}": text for text in (*PLACES, *MARKS)},
}


def test_what_must_not_pass_is_seen(tab, tmp_path):
    (tmp_path / "bad.html").write_text("<!doctype html><title>bad</title>" + "".join(BAD.values()))
    seen = list(complaints(tab, tmp_path / "bad.html"))
    assert [said for said in BAD if not any(re.match(said, one) for one in seen)] == []


def broken(site: Path) -> Iterator[str]:
    """Say which links of a site lead nowhere; of those that leave it only the form is known."""
    pages = {path.resolve(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    places = {path: {"", *re.findall(r'\bid="([^"]+)"', text)} for path, text in pages.items()}
    for path, text in pages.items():
        for link in map(html.unescape, re.findall(r'<[^>]*\s(?:href|src)="([^"]+)"', text)):
            parts, place = urlsplit(link), unquote(urlsplit(link).fragment)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if parts.scheme in ("http", "https"):
                lost = not re.fullmatch(r"[\w-]+(\.[\w-]+)+", parts.netloc)
            else:
                lost = not target.exists() or place not in places.get(target, {place})
            if lost and parts.scheme != "data":
                yield f"{path.name}: {link}"


def test_every_link_leads_somewhere(tmp_path):
    assert list(broken(SITE)) == []
    bad = ["lost.html", "#lost", "a.html#lost", "https://nowhere", "https:/example.org"]
    good = ["#here", "a.html#here", "a.html", "https://example.org/x"]
    links = "".join(f'<a id="here" href="{link}">x</a>' for link in bad + good)
    (tmp_path / "a.html").write_text(links)
    assert list(broken(tmp_path)) == [f"a.html: {link}" for link in bad]


# What visitors come for: what they click from the start page on, or type after a "?", and the texts
# that they see then.
TASKS = {
    "use all GPUs": (["Put fit on all devices"], ["Put fit on all devices", "fit.strategy("]),
    "it does not fit": (["It does not fit"], ["It does not fit", "memory.plan("]),
    "no model yet": (["It does not fit", "calculator"], ["Calculator"]),
    "first lesson": (["Where to begin", "Meet your machine"], ["00 Meet your machine"]),
    "slow": (["Why fit is slow"], ["mgpu_helpers.fit.explain("]),
    "machines": (["Several machines"], ["Several machines", "mgpu cluster"]),
    "look up": (["?memory.plan", "mgpu_helpers.memory.plan"], ["mgpu_helpers.memory.plan("]),
}
SIGHT = """one => {
    const box = one.getClientRects()[0], x = box.x + box.width / 2, y = box.y + box.height / 2;
    return box.x >= 0 && box.right <= innerWidth && box.y >= 0 && box.bottom <= innerHeight
        && one.contains(document.elementFromPoint(x, y));
}"""
SEEN = f"""texts => texts.every(text =>
    [...document.querySelectorAll("article :is(h1, h2, h3, dt, pre, code)")]
    .some(one => one.innerText.includes(text) && ({SIGHT})(one)))"""
MOST_TABS = 9


def press_tab_until(page, wanted) -> None:
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        if wanted.evaluate("one => one === document.activeElement"):
            return
    raise AssertionError(f"{MOST_TABS} times Tab do not reach {wanted}")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("hand, size", [
    ("mouse", DESK), ("keyboard", DESK), ("mouse", PHONE),
], ids=["mouse", "keyboard", "phone"])  # fmt: skip
def test_two_clicks_lead_to(tab, task: str, hand: str, size: dict):
    page, (steps, texts), fresh = tab, TASKS[task], True
    page.set_viewport_size(size)
    page.goto((SITE / "index.html").as_uri())
    for step in steps:
        link = page.locator("article").get_by_role("link", name=step, exact=True).first
        wanted = page.locator("input[name=q]:visible") if step.startswith("?") else link
        wanted.wait_for(timeout=20_000)
        if hand == "mouse":
            page.wait_for_function(SIGHT, arg=wanted.element_handle(), timeout=20_000)
            wanted.click()
        else:
            if fresh and wanted is link:
                press_tab_until(page, page.get_by_text("Skip to content"))
                page.keyboard.press("Enter")
            press_tab_until(page, wanted)
        if step.startswith("?"):
            page.keyboard.type(step[1:])
        if hand == "keyboard" or step.startswith("?"):
            page.keyboard.press("Enter")
        fresh = step.startswith("?")  # a jump within a page takes the keyboard along
        if step != steps[-1] and not fresh:
            page.wait_for_function(SEEN, arg=[step], timeout=20_000)
    page.wait_for_function(SEEN, arg=texts, timeout=20_000)


def test_the_site_has_the_wheel_that_it_names_with_its_hash():
    start = (SITE / "index.html").read_text(encoding="utf-8")
    (link,) = re.findall(r'href="([^"]+\.whl)"', start)
    assert hashlib.sha256((SITE / link).read_bytes()).hexdigest() in start
    assert f"pip install {Path(link).name}" in re.sub("<[^>]+>", "", start)
    for path in NOTEBOOKS.glob("*.ipynb"):
        assert "index.html#get-it" in (SITE / "notebooks" / f"{path.stem}.html").read_text("utf-8")


# What people type, nearly in their words where a thread is named (an issue, or a question), and
# the pages that answer it: one of them is to be among the first two.
SEARCHES = ROOT / "tests" / "data" / "searches.csv"


def test_the_first_two_pages_answer_what_people_type(tab):
    missed = {}
    for row in csv.DictReader(SEARCHES.read_text(encoding="utf-8").splitlines()):
        tab.goto((SITE / "search.html").as_uri() + f"?q={quote_plus(row['words'])}")
        first = [Path(urlsplit(link).path).stem for link in found(tab)[:2]]
        if not any(part in page.split("_") for part in row["pages"].split() for page in first):
            missed[row["words"]] = first
    assert not missed


@pytest.mark.parametrize("name", ["index", "docs/fit"])
@pytest.mark.parametrize("width", [360, 390])
def test_no_column_of_a_table_for_readers_is_out_of_a_phones_sight(tab, name: str, width: int):
    tab.set_viewport_size(PHONE | {"width": width})
    tab.goto((SITE / f"{name}.html").as_uri())
    frames = tab.locator("article .table-wrapper")
    over = frames.evaluate_all("all => all.map(one => one.scrollWidth - one.clientWidth)")
    assert over and {*over} == {0}


def test_a_picture_has_on_a_dark_page_the_colours_that_the_words_name(browser):  # noqa: F811
    for scheme, light in ("light", "brightness(1)"), ("dark", "brightness(0.88)"):
        page = browser.new_page(color_scheme=scheme)
        page.goto((SITE / "notebooks/13_pipeline_it.html").as_uri())
        charts = page.locator(".cell_output img")
        said = charts.evaluate_all("all => all.map(one => getComputedStyle(one).filter)")
        assert {*said} == {light}
        page.close()


def test_a_solution_is_closed_and_opens(tab):
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        tab.goto((SITE / "notebooks" / f"{path.stem}.html").as_uri())
        boxes = tab.locator("details.hide")
        assert boxes.count() == path.read_text(encoding="utf-8").count('"solution"') > 0
        said = boxes.locator(".output").get_by_text("yes: ")
        assert said.count() == boxes.count()  # the output of each stands in it
        for i in range(boxes.count()):
            assert not said.nth(i).is_visible()
            boxes.nth(i).locator("summary").click()
            assert said.nth(i).is_visible()


# What a reader can act on, each with a number; and what has the focus, and whether that is seen.
WANTED = """() => [...document.querySelectorAll(
    'a[href], summary, input, select, textarea, button')]
    .filter(one => one.checkVisibility({visibilityProperty: true}))
    .map((one, i) => one.dataset.place = `${i} ${one.outerHTML.slice(0, 200)}`)"""
FOCUSED = """() => {
    const one = document.activeElement, style = getComputedStyle(one);
    const box = one.getBoundingClientRect(), inside = box.right > 0 && box.x < innerWidth;
    const seen = inside && (style.outlineStyle !== 'none' || style.boxShadow !== 'none');
    return one === document.body ? null : [one.dataset.place, seen];
}"""


@pytest.mark.parametrize("name", [
    "index", "notebooks/00_meet_your_machine", "api/jobs", "search", "docs/calculator",
    "docs/traces",
])  # fmt: skip
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_the_keyboard_reaches_everything(tab, name: str, size: dict):
    tab.set_viewport_size(size)
    tab.goto((SITE / f"{name}.html").as_uri())
    wanted, reached = {*tab.evaluate(WANTED)}, {}
    for _ in range(1000):
        tab.keyboard.press("Tab")
        if (focused := tab.evaluate(FOCUSED)) is None:
            break
        reached.setdefault(*focused)
    assert wanted - {*reached} == set()
    assert [what for what, seen in reached.items() if not seen] == []


def test_buttons_and_a_link_stand_there_once_the_repository_is_known():
    conf = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    buttons, here = conf["buttons"], "https://github.com/name/lessons"
    buttons.__globals__["REPOSITORY"] = ""
    assert "olab" not in buttons("00_x")
    buttons.__globals__["REPOSITORY"] = here
    said = buttons("00_x")
    assert "google.com/github/name/lessons/blob/main/notebooks/00_x.ipynb)" in said
    assert "mybinder.org/v2/gh/name/lessons/main?labpath=notebooks/00_x.ipynb)" in said
    assert f"kaggle.com/kernels/welcome?src={here}/blob/main/notebooks/00_x.ipynb)" in said
    assert f"git clone -q --depth 1 {here}\n" in said and "%cd lessons/notebooks\n" in said
    start = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert f"clone [the project]({here}) and" in conf["in_words"](start)
    assert f"\n```\ngit clone {here}\n```\n" in conf["in_words"](start)
