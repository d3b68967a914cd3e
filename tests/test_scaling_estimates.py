"""What a fit says of its own predictions, against published tables and against chance."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mgpu_helpers.lessons.published import DGX_1, K80, P40, P100_FLOPS
from mgpu_helpers.scaling import (
    PCIE_3,
    Cost,
    Estimate,
    Layout,
    Measurement,
    Workload,
    asked,
    central,
    feasible,
    fit,
    interval,
    ring,
    speedup,
    step_time,
    terms_for,
)

WORK = Workload("mine", 1_000_000)
COST = Cost(1e-4, 5e-3, moving=1e-10)
LAYOUTS = [Layout(n, b) for n in (1, 2, 4) for b in (32, 64, 128)]
TERMS = ("arithmetic", "fixed", "moving")


def rows(layouts=LAYOUTS, scatter=0.0, seed=0):
    """Make measurements of `COST` whose logarithms scatter so much."""
    draw = np.random.default_rng(seed)
    return [
        Measurement(each, step_time(WORK, each, COST).total * math.exp(draw.normal(0, scatter)))
        for each in layouts
    ]


def eight_from_fewer(workload, table):
    """Fit 1, 2 and 4 GPUs with the terms that such rows can tell, and ask for the rows of 8."""
    few, eight = ([row for row in table if (row.layout.devices == 8) is w] for w in (False, True))
    return asked(fit(workload, few, terms_for(workload, few)), eight)


P100 = {(a.measurement.layout.per_device_batch, work.name): a
        for work, table in DGX_1 for a in eight_from_fewer(work, table)}  # fmt: skip
KEPLER = {(a.measurement.layout.per_device_batch, work.name): a
          for work, table in K80 for a in eight_from_fewer(work, table)}  # fmt: skip


def test_one_two_and_four_p100_predict_eight():
    assert len(P100) == 9
    missed = {key for key, answer in P100.items() if abs(answer.error) > 0.10}
    assert missed == {(32, "VGG16")}
    assert sorted(name for batch, name in P100 if batch > 32) == [
        "AlexNet", "InceptionV3", "ResNet-152", "ResNet-50", "VGG16",
    ]  # fmt: skip


@pytest.mark.parametrize("answer", [*P100.values(), *KEPLER.values()], ids=lambda a: (
    f"{a.measurement.source}, {a.measurement.layout}"
))  # fmt: skip
def test_the_interval_holds_what_eight_gpus_took(answer):
    found = answer.seconds
    assert "8 devices, where the rows have 4 at most" in found.doubts
    if found.low is None:  # AlexNet has three rows on the DGX-1, and three coefficients
        assert any("3 rows and 3 coefficients" in doubt for doubt in found.doubts)
    else:
        assert found.low < answer.measurement.seconds < found.high


def test_k80_are_predicted_too_slow_within_a_fifth():
    """A second GPU of the same card slows both, which the model takes for traffic."""
    sizes = [answer.error for answer in KEPLER.values()]
    assert 0 < min(sizes) and np.median(sizes) < 0.10 and max(sizes) < 0.20


def test_a_prediction_has_its_parts_its_interval_and_what_speaks_against_it():
    found = fit(WORK, rows(scatter=0.05), TERMS)
    layout = Layout(8, 16)
    got = found.predict(layout)
    assert (got.low, got.high) == interval(found, layout)
    assert (got.total.low, got.total.high, got.total.doubts) == (got.low, got.high, got.doubts)
    by_hand = step_time(WORK, layout, found.cost)
    assert got.arithmetic == by_hand.arithmetic and got.total == pytest.approx(by_hand.total)
    text = repr(got)
    for part in (f"{1e3 * got.low:.3g} to {1e3 * got.high:.3g}", "batch of 16", "32 to 128",
                 "8 devices, where the rows have 4"):  # fmt: skip
        assert part in text
    assert not found.predict(Layout(2, 100)).doubts


def test_without_spare_rows_there_is_no_interval_and_a_doubt_says_so():
    found = fit(WORK, rows([Layout(1, 32), Layout(1, 64), Layout(2, 64)]), TERMS)
    for got in (found.predict(Layout(2, 32)), found.predict(Layout(2, 32)).total,
                speedup(central, WORK, found, 2, per_device_batch=64)):  # fmt: skip
        assert got.low is None and got.high is None
        assert got.doubts == ("3 rows and 3 coefficients leave nothing to tell the spread by",)


@pytest.mark.parametrize("counts, batches, variables, terms", [
    ((1, 2, 4), (64,), ["host"], "arithmetic moving"),
    ((1, 2, 4), (64,), ["ring"], "arithmetic moving latency"),
    ((1, 2), (32, 64), ["ring"], "arithmetic fixed moving"),
    ((1, 2, 4), (32, 64), ["device", "host"], "arithmetic fixed update moving"),
    ((1,), (32, 64), ["device"], "arithmetic fixed"),
])  # fmt: skip
def test_the_terms_for_a_table_are_those_that_do_not_grow_alike(counts, batches, variables, terms):
    layouts = [Layout(n, b, v) for v in variables for n in counts for b in batches]
    assert terms_for(WORK, rows(layouts, 0.05)) == tuple(terms.split())


def test_a_term_that_the_rows_do_not_tell_is_a_doubt_where_it_is_asked_for():
    work = Workload("p40", 619_146, 65e6)
    found = fit(work, P40, TERMS)
    assert "do not determine arithmetic, fixed, moving" in found.predict(P40[1].layout).doubts[0]
    assert "do not determine arithmetic, fixed" in found.predict(P40[0].layout).doubts[0]
    assert "moving" not in found.predict(P40[0].layout).doubts[0]


def test_nineteen_of_twenty_speed_ups_lie_between_low_and_high():
    true = step_time(WORK, Layout(1, 64), COST).total / step_time(WORK, Layout(8, 64), COST).total
    draw, inside, tried = np.random.default_rng(3), 0, 200
    for seed in range(tried):
        found = fit(WORK, rows(scatter=0.05, seed=seed), TERMS)
        got = speedup(central, WORK, found, 8, per_device_batch=64)
        inside += got.low < 8 * true * math.exp(draw.normal(0, 0.05 * math.sqrt(2))) < got.high
    assert 0.91 <= inside / tried <= 0.985


def test_the_speed_up_of_a_fit_is_that_of_its_cost_with_an_interval():
    found = fit(WORK, rows(scatter=0.03), TERMS)
    for way, batch in ((central, {"per_device_batch": 64}), (ring, {"global_batch": 512})):
        got = speedup(way, WORK, found, 8, **batch)
        assert got == pytest.approx(speedup(way, WORK, found.cost, 8, **batch))
        assert got.low < got < got.high and f"{got:.1f}" == f"{float(got):.1f}"
        alone = speedup(way, WORK, found, 1, **batch)
        assert (alone, alone.low, alone.high) == (1, 1, 1)


def test_the_band_of_a_link_is_in_the_interval():
    found, batch = fit(WORK, rows(scatter=0.03), TERMS), {"per_device_batch": 4}
    got = speedup(ring, WORK, found, 8, link=PCIE_3, **batch)
    sure = replace(PCIE_3, low=PCIE_3.bandwidth, high=PCIE_3.bandwidth)
    narrow = speedup(ring, WORK, found, 8, link=sure, **batch)
    assert got == narrow and got.low < narrow.low < narrow.high < got.high
    # One device tells nothing of moving, and with a link it need not.
    one = fit(WORK, rows([Layout(1, b) for b in (32, 64, 128, 256)], 0.01), TERMS)
    assert speedup(ring, WORK, one, 8, link=PCIE_3, **batch).low > 1
    with pytest.raises(ValueError, match="8 devices x 4 .*moving"):
        speedup(ring, WORK, one, 8, **batch)
    with pytest.raises(ValueError, match="mine.*other"):
        speedup(ring, Workload("other", 10), found, 8, **batch)


def test_an_estimate_is_a_number():
    got = Estimate(3.8, 3.0, 4.9)
    assert got == 3.8 and 2 * got == 7.6 and np.array([got]).dtype == float
    assert repr(got) == str(got) == f"{got}" == "3.8 (3 to 4.9)" and repr(Estimate(2)) == "2"


def test_flop_are_optional_and_nothing_but_the_peak_wants_them():
    found = fit(WORK, rows(), TERMS)
    assert found.flops is None and "FLOP" not in repr(found)
    with_flops = fit(replace(WORK, flops=1e9), rows(), TERMS)
    assert with_flops.predict(Layout(8, 64)) == found.predict(Layout(8, 64))
    assert with_flops.flops == pytest.approx(1e9 / COST.arithmetic)


def test_a_chart_of_steps_names_a_ring():
    from mgpu_helpers import charts

    ax = charts.step_times(DGX_1[-1][1])
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == [f"{n} device{'s' * (n > 1)}, averaged in a ring" for n in (1, 2, 4, 8)]


def vgg16_flops():
    """Count 6 FLOP for each multiply-add: 13 convolutions of 3x3 and three dense layers."""
    size, channels, work = 224, 3, 0
    for block in ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3):
        for filters in block:
            work += size**2 * 9 * channels * filters
            channels = filters
        size //= 2
    return 6 * (work + size**2 * channels * 4096 + 4096 * 4096 + 4096 * 1000)


def test_vgg16_on_a_p100_is_above_the_peak_and_was_measured():
    vgg16, table = DGX_1[-1]
    assert vgg16.flops == vgg16_flops()
    seen = feasible(vgg16, 64, table[0].seconds, P100_FLOPS)
    assert seen.ok and 1.3 < seen.share < 1.4
    assert "well above the peak" in str(seen) and "impossible" not in str(seen)
    beyond = feasible(vgg16, 3.1 * 64, table[0].seconds, P100_FLOPS)
    assert not beyond.ok and beyond.share > 4 and "impossible" in str(beyond)
