"""What devices would hold and send, on paper: published numbers, and what is counted of models."""

from __future__ import annotations

import doctest
import math
import re
import sys
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from pathlib import Path

import numpy as np
import pytest

from fit_models import policy
from mgpu_helpers import fit, memory
from mgpu_helpers.scaling import Link, links

PAGE = (Path(__file__).parent.parent / "docs" / "on_paper.md").read_text(encoding="utf-8")
# Table 1 of the ZeRO paper (docs/sources.md): GB for each device, of stages 1, 2 and 3.
SIZES = {7.5e9: slice(0, 3), 128e9: slice(3, 6), 1e12: slice(6, 9)}  # its columns
ZERO = {
    1: "120 120 120 2048 2048 2048 16000 16000 16000",
    4: "52.5 41.3 30 896 704 512 7000 5500 4000",
    16: "35.6 21.6 7.5 608 368 128 4750 2875 1000",
    64: "31.4 16.6 1.88 536 284 32 4187 2218 250",
    256: "30.4 15.4 0.47 518 263 8 4046 2054 62.5",
    1024: "30.1 15.1 0.12 513 257 2 4011 2013 15.6",
}
# Tables 1 and 8 and figure 5 of Megatron-LM: GPUs, parameters, hidden size, layers, and what
# came of it; a batch of 8 sequences of 1024, on V100 with NVLink, 39 TFLOP/s on one.
WEAK = [(2, 2.5e9, 1920, 54, 0.95), (4, 4.2e9, 2304, 64, 0.82), (8, 8.3e9, 3072, 72, 0.77)]
STRONG = [(2, 1.64), (4, 2.34), (8, 2.98)]
TOKENS, SUSTAINED = 8 * 1024, 39e12


def by_name(*args, **options):
    """Give the ways of a paper by the first two words of their names."""
    ways = memory.on_paper(*args, **options).ways
    return {" ".join(way.name.split()[:2]): way for way in ways}


@pytest.mark.parametrize("parameters", SIZES)
def test_all_numbers_of_zero_are_met(parameters):
    for devices, line in ZERO.items():
        ways = by_name(parameters, devices)
        for stage, printed in enumerate(map(Decimal, line.split()[SIZES[parameters]]), 1):
            way = ways[f"ZeRO {stage}"] if devices > 1 else ways["as it"]
            cut = printed == printed.to_integral_value()  # the paper cuts whole numbers off
            got = Decimal(way.held / 1e9).quantize(printed, ROUND_DOWN if cut else ROUND_HALF_UP)
            assert got == printed, (parameters, devices, stage)
            assert way.held == way.weights + way.gradients + way.slots


def test_where_layers_keep_their_inputs_only_nothing_is_shared_out():
    found = by_name(7e9, 8, activations=4e9, layers=4, between=1e9)
    assert found["tensor parallel"].activations == 4e9
    assert "2 rows" in found  # and a stage can be a single layer


def equal(width, depth, optimizer):
    """Make a model of equal layers."""
    import keras

    layers = [keras.layers.Dense(width, use_bias=False) for _ in range(depth)]
    model = keras.Sequential([keras.Input((width,)), *layers])
    model.compile(optimizer, "mse")
    return model


def test_paper_and_plan_agree(plan):
    """Weights, slots and what crosses, of four equal layers of which each device owns half."""
    width, batch, n = 64, 32, 2
    model = equal(width, 4, "adam")
    model.optimizer.build(model.trainable_variables)
    slots = sum(4 * math.prod(v.shape) for v in model.optimizer.variables if len(v.shape))
    parameters, handed = 4 * width**2, 4 * batch * width
    options = {"precision": "float32", "layers": 4, "between": handed}
    ways = by_name(parameters, n, **options)
    assert ways["as it"].weights == memory.plan(model, batch).weights
    assert ways["as it"].slots == slots

    counted = sys.modules["mgpu_helpers.memory.ways"].Step(model, batch, plan.devices, None)
    assert 0 < counted.slots - ways["batch over"].slots < 20  # the number of steps and the rate
    assert ways["ZeRO 2"].slots == counted.shard * slots / counted.trained
    assert ways["ZeRO 2"].weights == counted.weights

    outputs = batch * width * 4  # half of them go to the first device for the loss, and back
    crossing = {way.name: way.crossing for way in memory.plan(model, batch, n).ways}
    assert n * ways["batch over"].sends == crossing["batch over 2 devices"] - outputs
    assert n * ways["ZeRO 2"].sends == crossing["batch and state over 2 devices"] - outputs
    host = by_name(parameters, 1, precision="float32")["state on"]
    assert host.sends == crossing["state on the host"]
    assert (host.weights, host.slots) == (ways["as it"].weights, 0)
    cut = next(size for name, size in crossing.items() if name.endswith("stages"))
    assert n * ways["pipeline"].sends + 4 == cut  # and the loss of all, a number
    grid = by_name(parameters, 4, **options)["2 rows"]
    crossing = {way.name: way.crossing for way in memory.plan(model, batch, 4).ways}
    whole = crossing["batch over 2 rows of devices + 2 stages"]
    assert 4 * grid.sends + 2 * 4 == whole - outputs


def test_remedies_on_one_device_are_those_of_the_plan(keras, plan):
    width, batch, depth = 256, 8, 9
    optimizer = keras.optimizers.Adam(global_clipnorm=1.0)  # needs all gradients at once
    model = equal(width, depth, optimizer)
    held = {way.name: way.held for way in memory.plan(model, batch).ways}
    kept, handed = 4 * batch * width * depth, 4 * batch * width
    options = {"activations": kept, "layers": depth, "between": handed, "pieces": 2}
    found = memory.on_paper(depth * width**2, 1, precision="float32", **options)
    ways = {way.name: way for way in found.ways}
    assert list(ways) == [name for name in held if not name.endswith("stages")]
    # Where the weights are most of it, pieces cost the sum of their gradients.
    more = ways["2 pieces"].gradients - ways["as it is"].gradients
    assert more == pytest.approx(held["2 pieces"] - held["as it is"], rel=1e-3)
    assert ways["2 pieces"].activations == ways["mixed_bfloat16"].activations == kept / 2
    assert ways["recompute in 3 parts"].activations == 3 * handed + kept / 3
    assert all(ways[name].sends == 0 for name in held if name != "state on the host")


def test_what_fit_can_do_is_a_layout_that_it_takes(keras, plan):
    """On a model of so many layers and these devices; it then trains and tells this layout."""
    taken, data = {}, np.ones((2, 8, 6), "f")
    options = {"precision": "float32", "layers": 4, "between": 192, "pieces": 2}
    for n in (1, 2):
        paper = memory.on_paper(4 * 36, n, **options)
        for way in paper.ways:
            if (layout := way.layout) is None:
                continue
            taken[way.name] = len(layout.devices), way.options
            moved = {"devices": plan.devices[:n]} if layout.devices else {}
            with policy("mixed_bfloat16" if way.half else "float32"):
                model = equal(6, 4, "sgd")
            assert fit.layout(fit.use(model, way, **moved)) == layout.changed(**moved)
            assert np.isfinite(model.train_on_batch(*data))
    assert taken == {
        "as it is": (0, {}), "mixed_bfloat16": (0, {}), "2 pieces": (0, {"pieces": 2}),
        "recompute in 2 parts": (0, {"recompute": 2}), "batch over 2 devices": (2, {}),
        "ZeRO 2": (2, {"state": "owners"}), "pipeline": (2, {"stages": 2}),
        "state on the host": (2, {"state": "host"}),
    }  # fmt: skip
    halved = next(way for way in paper.ways if way.half)
    with pytest.raises(ValueError, match="'mixed_bfloat16' is of a model in half precision"):
        fit.use(equal(6, 4, "sgd"), halved)


def megatron(devices, parameters, hidden, layers, width=links.NVLINK_2.bandwidth):
    """Give the seconds that a GPU computes, and sends, in a step whose forward pass runs twice."""
    link = Link("NVLink", width, width, width, links.NVLINK_2.latency)
    ways = by_name(parameters, devices, layers=layers, between=2 * TOKENS * hidden,
                   recomputed=True, link=link)  # fmt: skip
    return 8 * parameters * TOKENS / devices / SUSTAINED, ways["tensor parallel"].seconds


def rows():
    """Write the rows of the table of docs/on_paper.md."""
    widths = links.NVLINK_2.low, links.NVLINK_2.high, links.NVLINK_2.bandwidth
    for devices, parameters, hidden, layers, published in WEAK:
        each = [megatron(devices, parameters, hidden, layers, width) for width in widths]
        low, high, likely = (100 * computes / (computes + sends) for computes, sends in each)
        computes, sends = each[-1]
        yield (
            f"| {parameters / 1e9:.1f} billion on {devices} | {computes:.2f} s | {sends:.2f} s | "
            f"{likely:.0f} % ({low:.0f} % to {high:.0f} %) | {100 * published:.0f} % | "
            f"{likely / (100 * published):.2f} |"
        )
    for devices, published in STRONG:
        computes, sends = megatron(devices, 1.2e9, 1536, 40)
        faster = devices * computes / (computes + sends)
        yield (
            f"| 1.2 billion on {devices} | {computes:.2f} s | {sends:.2f} s | {faster:.2f} times | "
            f"{published:.2f} times | {faster / published:.2f} |"
        )


def test_the_page_says_how_far_megatron_is_off():
    missing = [row for row in rows() if row not in PAGE]
    assert not missing, "\n".join(missing)


def test_the_page_has_numbers_of_zero():
    found = re.findall(r"^\| (\d+) \| 120 \| (\S+) \| (\S+) \| (\S+) \|$", PAGE, re.M)
    assert len(found) == 3
    assert all(ZERO[int(n)].split()[SIZES[7.5e9]] == numbers for n, *numbers in found)


def test_the_example_of_the_page_runs():
    ran = doctest.DocTestParser().get_doctest(PAGE.replace("```", ""), {}, "on_paper.md", None, 0)
    said = []
    assert ran.examples and "fits" not in repr(memory.on_paper(7e9, 8))
    assert not doctest.DocTestRunner().run(ran, out=said.append).failed, "".join(said)


@pytest.mark.parametrize("given, value", [
    ({"parameters": 0}, "parameters=0"), ({"devices": 1.5}, "devices=1.5"),
    ({"precision": "half"}, "precision='half'"), ({"budget": math.nan}, "budget=nan"),
    ({"pieces": 0}, "pieces=0"),
    ({"layers": 4}, "between=0"), ({"between": 4}, "layers=0"),
])  # fmt: skip
def test_bad_arguments(given, value):
    with pytest.raises(ValueError, match=value):
        memory.on_paper(**{"parameters": 1e9, "devices": 2} | given)
