"""The calculator of the site against Python, in a real Chromium: ``-m site``."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest

from lessons import ROOT
from mgpu_helpers import fit, memory, scaling
from mgpu_helpers._formatting import size_text
from mgpu_helpers.scaling import links
from test_browser import browser  # noqa: F401, a fixture

pytestmark = pytest.mark.site

PAGE = ROOT / "build" / "site" / "docs" / "calculator.html"
LINKS = [name for name, value in vars(links).items() if isinstance(value, links.Link)]
FIELDS = ("parameters", "slots", "precision", "batch", "activations", "longer", "squared", "layers",
          "between", "pieces", "devices", "budget", "link", "time")  # fmt: skip
PARTS = ("weights", "gradients", "slots", "activations")
FORM = "() => Object.fromEntries(new FormData(document.querySelector('#calculator-form form')))"
SHOWN = """address => {
    if (address) location.hash = address;
    dispatchEvent(new Event('hashchange'));  // the real one comes later
    const box = document.getElementById('calculator-form');
    const texts = (all) => [...all].map(one => one.innerText.trim());
    return {
        said: document.getElementById('calculator-said').textContent,
        tables: [...box.querySelectorAll('table')].map(table => [...table.tBodies[0].rows].map(
            row => [...row.cells].map(cell =>
                [cell.textContent, Number(cell.querySelector('data')?.value ?? 0)]))),
        bars: [...box.querySelectorAll('li')].map(one => {
            const bar = one.querySelector('.bar'), wide = bar.getBoundingClientRect().width;
            return [one.innerText.trim(),
                [...bar.querySelectorAll('i')].map(i => i.getBoundingClientRect().width / wide),
                parseFloat(bar.querySelector('b')?.style.left ?? 'NaN') / 100];
        }),
        efficiency: box.querySelectorAll('.paper p')[1]?.innerText,
    };
}"""


def drawn(seed: int) -> dict[str, str]:
    """Draw what somebody may enter."""
    chance = random.Random(f"{seed}")  # none of a hundred is half way between two texts
    parameters, batch = round(10 ** chance.uniform(3, 12)), chance.randint(1, 512)
    kept, layers = chance.choice([0, chance.uniform(0, 2000)]), chance.choice([0, 1, 12, 96])
    values = [
        chance.choice([f"{parameters}", f"{parameters:,}", f"{parameters / 1e3:.0f}e3"]),
        chance.choice("012"), chance.choice(["float32", "mixed"]), batch, kept,
        chance.choice([1, 0.5, 4]), chance.choice([0, 0.3]) * kept, layers,
        chance.uniform(0.01, 50) if layers else 0, chance.randint(1, batch),
        chance.choice([1, 2, 3, 8, 64, 1000]), chance.uniform(1, 200), chance.choice(LINKS),
        f"{10 ** chance.uniform(-2, 4):.6g}",
    ]  # fmt: skip
    return dict(zip(FIELDS, map(str, values), strict=True))


def on_paper(case: dict[str, str], **others) -> memory.Paper:
    t, size = float(case["longer"]), 1e6 * int(case["batch"])
    activations, squared = float(case["activations"]), float(case["squared"])
    return memory.on_paper(
        float(case["parameters"].replace(",", "")), int(case["devices"]),
        float(case["budget"]) * 1e9, precision=case["precision"], slots=int(case["slots"]),
        activations=((activations - squared) * t + squared * t**2) * size,
        layers=int(case["layers"]), between=float(case["between"]) * t * size,
        pieces=int(case["pieces"]),
        **{"link": getattr(links, case["link"]), "to_host": links.PCIE_3} | others,
    )  # fmt: skip


def shares(case: dict[str, str], n: int) -> list[float]:
    """Give the share of computing in a step on n devices, likely and with the link's two ends."""
    likely, computes = getattr(links, case["link"]), float(case["time"]) / 1e3
    computes *= float(case["longer"])
    each, found = int(case["batch"]) / n, []
    for bandwidth in (likely.bandwidth, likely.low, likely.high):
        link = replace(likely, low=bandwidth, bandwidth=bandwidth, high=bandwidth)
        ways = on_paper(case | {"devices": str(n)}, link=link).ways
        sends = next((way.seconds for way in ways if way.name.startswith("batch")), 0.0)
        found.append(each * computes / (each * computes + sends))
        if case["precision"] == "float32":
            work = scaling.Workload("a", round(float(case["parameters"].replace(",", ""))))
            step = scaling.ring(work, scaling.Cost(computes), n, each, link)
            assert found[-1] == pytest.approx(step.arithmetic / step.total, rel=1e-12)
    return found


def gpus(n: int) -> list[str]:
    return [f"/GPU:{i}" for i in range(n)]


def pasted(line: str, n: int) -> fit.Layout:
    """Give the layout that a line of the page makes on n GPUs; that of no device if none."""
    use = SimpleNamespace(use=lambda model, plan=(), **more: fit.Layout(plan, **more))
    named = {"fit": use, "model": None, "plan": gpus(n)}
    return eval(line, named) if line.startswith("fit.use") else fit.Layout()


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_a_hundred_cases_have_the_numbers_of_python(page, first: int):
    for seed in range(first, first + 10):
        case = drawn(seed)
        paper, shown = on_paper(case), page.evaluate(SHOWN, f"#{urlencode(case)}")
        assert shown["said"] == ""
        ways, points = shown["tables"]
        budget, most = paper.budget, max(way.held for way in paper.ways)
        end = max(most, min(budget, 1.25 * most))
        for way, row, bar in zip(paper.ways, ways, shown["bars"], strict=True):
            parts = [getattr(way, part) for part in PARTS]
            wanted = [way.held, *parts, way.sends, way.seconds or 0]
            assert [value for _, value in row[1:]] == pytest.approx(wanted, rel=1e-12), (case, way)
            texts = [size_text(round(each)) if each else "-" for each in wanted[:-1]]
            takes = f"{float(f'{way.seconds:.3g}'):g} s" if way.seconds else "-"
            assert [row[0][0], *(text for text, _ in row[1:-1])] == [way.name, *texts]
            assert float(row[-1][0].rstrip(" s-") or 0) == float(takes.rstrip(" s-") or 0)
            fits = "fits" if way in paper.fitting else "does not fit"
            said, _, line = bar[0].partition("\n")
            assert said == f"{way.name}: {texts[0]}, {fits}"
            auto = {"layers": "auto"} if way.name == "tensor parallel" else {}
            wanted = way.layout or fit.Layout(gpus(paper.devices) if auto else (), **auto)
            assert pasted(line, paper.devices) == wanted, line
            assert bool(line) == (way.name not in ("as it is", "ZeRO 1", "ZeRO 3"))
            assert bar[1] == pytest.approx([each / end for each in parts], abs=2e-3)
            assert bar[2] == pytest.approx(budget / end if budget <= end else float("nan"),
                                           rel=1e-4, nan_ok=True)  # fmt: skip
        batch, devices = int(case["batch"]), int(case["devices"])
        powers = {2**i for i in range(13) if 2**i <= max(8, 4 * devices)}
        assert [row[0][1] for row in points] == sorted(n for n in powers | {devices} if n <= batch)
        for (_, n), *got in points:
            assert [value for _, value in got] == pytest.approx(shares(case, int(n)), rel=1e-9)
        if 1 < devices <= batch:
            texts = (f"{float(f'{100 * each:.3g}'):g}\xa0%" for each in shares(case, devices))
            said = "efficiency is {}, or from {} to {} with".format(*texts)
            assert said in shown["efficiency"]


def test_the_address_holds_what_was_entered(browser, page):  # noqa: F811
    case = drawn(7)
    for name, value in case.items():
        field = page.locator(f"[name={name}]")
        field.select_option(value) if name in ("slots", "precision", "link") else field.fill(value)
    assert page.evaluate(FORM) == case
    other = browser.new_page()
    other.goto(page.url)
    assert other.evaluate(FORM) == case
    assert other.evaluate(SHOWN, "") == page.evaluate(SHOWN, "")
    shown = other.evaluate(SHOWN, "#what-is-counted")  # a place on the page
    assert other.evaluate(FORM) == case and shown["bars"]
    other.close()


@pytest.mark.parametrize("entered, said", [
    ({"devices": "1.5"}, 'Devices: "1.5" is not a whole number from 1 to 1000000, such as 2.'),
    ({"parameters": "25.64"}, '"25.64" is not a whole number'),
    ({"parameters": "7GB"}, '"7GB" is not a whole number'),
    ({"budget": "80G B"}, '"80G B" is not a number above 0'),
    ({"parameters": "7,5e9"}, '"7,5e9" is not a whole number'),
    ({"activations": ""}, '"" is not a number from 0 on'),
    ({"time": "1e999"}, '"1e999" is not a number above 0'),
    ({"layers": "0"}, '"1.6" is not possible with 0 layers: give both, or 0 for both.'),
    ({"squared": "701"}, '"701" is more than the 700 MB of all.'),
    ({"pieces": "64"}, '"64" is more than the 32 examples of a batch.'),
    ({"link": "string"}, 'Link between devices: "" is none of the choices.'),
])  # fmt: skip
def test_wrong_input_is_said_in_one_sentence(page, entered, said):
    shown = page.evaluate(SHOWN, f"#{urlencode(entered)}")
    assert said in shown["said"] and shown["said"].count(". ") == 0
    assert shown["bars"] == shown["tables"] == []
    (wrong,) = page.locator("[aria-invalid]").all()
    assert wrong.get_attribute("name") in {*entered, "between"}
    shown = page.evaluate(SHOWN, "#devices=4")
    assert shown["said"] == "" and shown["bars"]


@pytest.mark.parametrize("with_units, plain", [
    ({"parameters": "7 b"}, {"parameters": "7,000,000,000"}),
    ({"parameters": "25.64M", "budget": "40 GiB"},
     {"parameters": "25640000", "budget": "42.94967296"}),
    ({"activations": "1.2GB", "squared": "1,000 kB"}, {"activations": "1200", "squared": "1"}),
])  # fmt: skip
def test_numbers_have_units_as_people_write_them(page, with_units, plain):
    shown = page.evaluate(SHOWN, f"#{urlencode(with_units)}")
    assert shown["said"] == "" and shown == page.evaluate(SHOWN, f"#{urlencode(plain)}")


def test_more_devices_than_examples_are_said(page):
    shown = page.evaluate(SHOWN, "#devices=64")
    assert shown["efficiency"] == "64 devices cannot share a batch of 32: each needs an example."
    assert page.evaluate(SHOWN, "#devices=1")["efficiency"] == "One device sends nothing."


def test_a_summary_of_keras_is_read(page, keras):
    layers = [keras.layers.Dense(1200), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)  # whose numbers are in "Total params"
    lines: list[str] = []
    model.summary(print_fn=lines.append)
    box, parameters = page.get_by_label("model.summary()"), page.locator("[name=parameters]")
    box.fill("\n".join(lines))
    assert "Optimizer params" in lines[-1]
    assert parameters.input_value() == "16,803" and "parameters=16%2C803" in page.url
    said = "16,803 trainable parameters are taken. The 2,400 others have no gradients; each device "
    assert page.get_by_text(said + "holds 9.6 kB more for them, in float32.").is_visible()
    box.fill("nothing")
    assert page.get_by_text("no line with").is_visible() and parameters.input_value() == "16,803"
    for count, text in {"5": "5", "25,583,592": "25583592 (97.59 MB)",
                        "25,640,000": "25.64M (97.81 MB)"}.items():  # fmt: skip
        box.fill(f"Total params: {text}\n")
        assert parameters.input_value() == count


def test_an_optimizer_keeps_what_the_form_says(page, keras):
    kinds = {"Adam": {}, "AdamW": {}, "Lion": {}, "RMSprop": {}, "SGD": {}}
    told: dict[str, str] = {}
    for option in page.locator("[name=slots] option").all():
        names = option.inner_text().replace("SGD with momentum", "momentum").split(", ")
        told |= dict.fromkeys(names, option.get_attribute("value"))
    assert {*told} == {*kinds, "momentum"}
    for name, slots in told.items():
        momentum = {"momentum": 0.9} if name == "momentum" else {}
        optimizer = getattr(keras.optimizers, "SGD" if momentum else name)(**momentum)
        optimizer.build([keras.Variable([[0.0] * 3])])
        assert sum(v.shape == (1, 3) for v in optimizer.variables) == int(slots), name
