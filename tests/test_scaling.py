"""The cost model against hand counts, SciPy, and the published rows that it must describe."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st

from conftest import ROOT, run_python
from mgpu_helpers import models, scaling
from mgpu_helpers.scaling import (
    ETHERNET_100G,
    NVLINK_3,
    P40_FLOPS,
    PCIE_3,
    SEED_001,
    SEED_001_APART,
    SEED_001_SPLIT,
    SEED_004,
    TERMS,
    Cost,
    Fit,
    Layout,
    Link,
    Measurement,
    Parts,
    Workload,
    asked,
    central,
    efficiency,
    errors,
    feasible,
    fit,
    holdout,
    interval,
    knee,
    ring,
    speedup,
    step_time,
)

NET_001 = Workload.of(models.seed_001(), cut="conv2")
NET_004 = Workload.of(models.seed_004())
FIT = fit(NET_001, SEED_001)
DESCRIBES_004 = ("arithmetic", "fixed", "moving")
SMALL = Workload("small", 1000, 5e6, 300)  # 4000 bytes of parameters
COST = Cost(2e-3, 5e-3, 7e-3, 1e-6)
VARIED = [  # enough to tell four terms, and the serial input too
    Layout(n, b, v) for n, b, v in (
        (1, 128, "device"), (1, 512, "device"), (1, 128, "host"), (2, 128, "host"),
        (2, 512, "device"), (3, 256, "host"), (4, 64, "device"), (4, 768, "host"),
        (8, 32, "device"), (8, 256, "host"),
    )
]  # fmt: skip


def sizes(answers):
    return np.abs(errors(answers))


def rows(workload, layouts, cost, noise=None):
    """Make measurements that a cost explains, with relative noise or exactly."""
    noise = np.zeros(len(layouts)) if noise is None else noise
    return [
        Measurement(layout, float(step_time(workload, layout, cost).total * np.exp(e)))
        for layout, e in zip(layouts, noise, strict=True)
    ]


def test_the_networks_are_counted_from_their_layers():
    assert (NET_001.parameters, NET_001.bytes, NET_001.flops) == (6_640_394, 26_561_576, 284459008)
    assert (NET_004.parameters, NET_004.flops) == (619_146, 65_421_312)
    assert NET_001.split_bytes == 2 * 14 * 14 * 64 * 4 and NET_004.split_bytes is None


# Seconds a batch and an example as printed in the seed, which also prints the totals.
PRINTED = [
    (0.0185320489407, 0.000144781632349), (0.0325367029905, 0.000254192992114),
    (0.0434600304365, 0.000169765743893), (0.0377908810377, 0.000147620629054),
    (0.0548495675325, 0.000107128061587), (0.0840681020021, 0.0000820977558615),
    (0.0589099514484, 0.0000767056659485), (0.04551167202, 0.0000592599896093),
    (0.115077085972, 0.0000499466518975), (0.020181712985, 0.000157669632696),
    (0.356037734985, 0.00278154480457), (0.0233284285069, 0.00018225334771),
]  # fmt: skip


def test_the_published_rows_agree_with_their_printed_seconds():
    apart = [row for row in SEED_001_APART.values() if row.steps]
    published = [*SEED_001, SEED_001_SPLIT, *apart]
    for row, (batch, example) in zip(published, PRINTED, strict=True):
        assert row.seconds == pytest.approx(batch, rel=1e-9)
        assert row.seconds / row.layout.global_batch_size == pytest.approx(example, rel=1e-9)
        assert row.total == pytest.approx(2000 * batch, rel=1e-9)
        assert len(row.memory) == max(2, row.layout.devices)
    assert [row.total for row in SEED_004] == [22.252533, 12.632623, 11.083071, 11.990167]
    assert {row.layout.global_batch_size for row in SEED_004} == {10_000}


# Regression guards: what these rows gave when the model was chosen, with a little room.


def test_seed_001_is_described():
    assert FIT.median <= 0.03 and FIT.worst <= 0.10
    assert all(value > 0 for value in astuple(FIT.cost)[:4])
    assert 2.2e12 <= FIT.flops <= 3.0e12 and 6e9 <= FIT.bandwidth <= 13e9


def test_seed_001_predicts_a_configuration_that_was_left_out():
    answers = holdout(NET_001, SEED_001)
    assert [m for m, _ in answers] == list(SEED_001)
    assert np.median(sizes(answers)) <= 0.05 and sizes(answers).max() <= 0.12


def test_one_and_two_gpus_predict_three():
    few, three = ([m for m in SEED_001 if (m.layout.devices == 3) is w] for w in (False, True))
    answers = asked(fit(NET_001, few), three)
    assert np.median(sizes(answers)) <= 0.08 and sizes(answers).max() <= 0.10
    by_devices = [a for a in holdout(NET_001, SEED_001, "devices") if a.measurement in three]
    assert by_devices == answers


def test_the_split_row_needs_no_parameter_of_its_own():
    (answer,) = asked(FIT, [SEED_001_SPLIT])
    assert abs(answer.error) <= 0.05


def test_the_third_run_is_missed_and_the_interval_says_that_it_does_not_fit():
    (answer,) = asked(FIT, [SEED_001_APART["third run"]])
    assert 0.35 <= answer.error <= 0.45
    low, high = interval(FIT, answer.measurement.layout)
    assert answer.measurement.seconds < low < answer.seconds < high
    assert all(
        interval(FIT, m.layout)[0] < m.seconds < interval(FIT, m.layout)[1] for m in SEED_001
    )


def test_the_rows_of_seed_001_tell_four_terms_and_not_input_or_latency():
    assert set(FIT.unidentified) == {"input", "latency"}
    assert "moving" in FIT.unidentified["latency"] and "scatter" in FIT.unidentified["input"]
    with_input = fit(NET_001, SEED_001, TERMS[:5])
    assert "input" in with_input.unidentified
    assert not {"arithmetic", "fixed", "moving"} & set(with_input.unidentified)


def test_seed_004_is_described_but_not_tested():
    found = fit(NET_004, SEED_004, DESCRIBES_004)
    assert found.worst <= 0.06
    assert "a description, not a test" in repr(found)
    assert found.bandwidth < PCIE_3.low / 10  # a link thirty times too slow: it stands for others
    assert sizes(holdout(NET_004, SEED_004, terms=DESCRIBES_004)).max() > 0.25
    assert {"arithmetic", "fixed", "moving"} < set(found.unidentified)
    with pytest.raises(ValueError, match="^4 rows and 4 coefficients leave nothing to tell the sp"):
        interval(fit(NET_004, SEED_004), Layout(4, 2500))


def test_the_listing_of_seed_004_is_impossible_and_the_upstream_settings_are_not():
    seconds = SEED_004[0].total
    listing = feasible(NET_004, 1000 * (55_000 // 20_000) * 20_000, seconds, P40_FLOPS)
    assert not listing.ok and listing.share == pytest.approx(10, rel=0.01)
    assert str(listing) == (
        "65.4 MFLOP x 40,000,000 examples in 22.25 s are 118 TFLOP/s, 10.0 times the peak of 11.8: "
        "impossible"
    )
    upstream = feasible(NET_004, 10 * (55_000 // 10_000) * 10_000, seconds, P40_FLOPS)
    assert upstream.ok and upstream.share == pytest.approx(1.47e12 / 11.76e12, rel=0.01)
    assert "13% of the peak of 11.8: possible" in upstream.sentence


# The arithmetic


@pytest.mark.parametrize("layout, parts", [
    # two milliseconds an example, one byte a microsecond, 4000 bytes of parameters
    (Layout(1, 10), Parts(0.02, 0.005)),
    (Layout(1, 10, "host"), Parts(0.02, 0.005, 0.007, 2 * 0.004, latency=2 * 0.1)),
    (Layout(3, 10), Parts(0.02, 0.005, 0, 4 * 0.004, latency=4 * 0.1)),
    (Layout(3, 10, "host"), Parts(0.02, 0.005, 0.007, 6 * 0.004, latency=6 * 0.1)),
    (Layout(2, 10, path="split"), Parts(0.02, 0.005, 0, 0.003, latency=2 * 0.1)),
    (Layout(2, 10, "host", "split"), Parts(0.02, 0.005, 0.007, 0.003 + 0.008, latency=4 * 0.1)),
])  # fmt: skip
def test_the_parts_of_a_step_by_hand(layout, parts):
    cost = replace(COST, latency=0.1, input=0.5)
    parts = replace(parts, input=0.5 * 10 * (layout.devices if layout.path == "data" else 1))
    found = step_time(SMALL, layout, cost)
    assert astuple(found) == pytest.approx(astuple(parts))
    assert found.total == pytest.approx(sum(astuple(parts)))


def test_layouts_know_their_global_batch_and_print_themselves():
    assert Layout(3, 256).global_batch_size == 768
    assert Layout(2, 128, path="split").global_batch_size == 128
    assert repr(Layout(2, 256, "host")) == "2 devices x 256, variables on the host"
    assert repr(Layout(1, 128)) == "1 device x 128"
    assert repr(Layout(2, 128, path="split")) == "model split over 2 devices, batch 128"


def test_a_fit_prints_what_it_found():
    text = repr(FIT)
    assert text.startswith("seed_001: 9 rows, 4 coefficients; error 2.2% in the median, 8.6% at")
    for part in ("0.11 ms an example (2.58 TFLOP/s)", "4.38 ms", "8.24 ms with", "8.18 GB/s"):
        assert part in text
    assert "not told: latency; from row to row it changes as moving does" in text
    assert "description" not in text


ten = st.floats(0.1, 10)


@given(ten, ten, ten, ten, ten)
def test_rows_without_noise_give_the_cost_back(c, f, u, m, i):
    cost = Cost(1e-4 * c, 5e-3 * f, 5e-3 * u, 1e-10 * m, 2e-5 * i)
    for terms in (TERMS[:4], TERMS[:5]):
        true = replace(cost, **{term: 0.0 for term in TERMS if term not in terms})
        found = fit(NET_001, rows(NET_001, VARIED, true), terms)
        assert astuple(found.cost) == pytest.approx(astuple(true), rel=1e-6, abs=1e-30)
        assert not set(found.unidentified) & set(terms) and found.worst < 1e-9
        assert found.flops == pytest.approx(NET_001.flops / true.arithmetic)
        assert found.bandwidth == pytest.approx(1 / true.moving)


@given(st.data(), st.integers(1, 6), st.integers(0, 8), st.integers(0, 2**32 - 1))
def test_the_solution_is_that_of_scipy(data, columns, more, seed):
    draw = np.random.default_rng(seed)
    matrix = draw.normal(size=(columns + more, columns)) * 10.0 ** draw.integers(-9, 9, columns)
    found, squares = scaling._solve(matrix)
    scale = np.linalg.norm(matrix, axis=0)
    wanted, norm = scipy.optimize.nnls(matrix / scale, np.ones(len(matrix)))
    assert found.min() >= 0
    assert squares == pytest.approx(norm**2, rel=1e-6, abs=1e-12)
    if np.linalg.cond(matrix / scale) < 100:
        assert found * scale == pytest.approx(wanted, rel=1e-5, abs=1e-7)


@given(st.integers(0, 2**32 - 1))
def test_a_term_is_told_when_an_f_test_says_so(seed):
    noise = np.random.default_rng(seed).normal(0, 0.06, len(VARIED))
    cost = Cost(1e-4, 2e-3, 2e-3, 2e-11)
    found = fit(NET_001, rows(NET_001, VARIED, cost, noise))
    assume(min(astuple(found.cost)[:4]) > 0)
    matrix = scaling._matrix(NET_001, found.measurements, TERMS[:4])
    ones, spare = np.ones(len(matrix)), len(matrix) - 4
    (full,) = np.linalg.lstsq(matrix, ones, rcond=None)[1]
    for i, term in enumerate(TERMS[:4]):
        less = scipy.optimize.nnls(np.delete(matrix / matrix.max(0), i, 1), ones)[1] ** 2
        chance = scipy.stats.f.sf((less - full) / (full / spare), 1, spare)
        assume(abs(chance - 0.05) > 1e-3)
        assert (term not in found.unidentified) == (chance < 0.05)


def test_a_column_that_repeats_another_stays_at_zero():
    found = fit(NET_001, SEED_001, TERMS)
    assert found.cost.latency == 0 and "latency" in found.unidentified
    assert astuple(found.cost) == pytest.approx(astuple(FIT.cost))


@given(ten, ten, ten)
def test_a_term_that_costs_nothing_is_not_told_by_rows_without_noise(c, f, m):
    cost = Cost(1e-4 * c, 5e-3 * f, 0, 1e-10 * m)
    assert "update" in fit(NET_001, rows(NET_001, VARIED, cost)).unidentified


@pytest.mark.parametrize("spare", [*range(1, 40), 100, 1000])
def test_students_distribution_is_that_of_scipy(spare):
    assert scaling._student(spare) == pytest.approx(scipy.stats.t.ppf(0.975, spare), rel=1e-3)


@pytest.mark.parametrize("layouts, term, why", [
    ([Layout(n, b) for n in (1, 2) for b in (10, 20, 30)], "update",
     "no row has its variables on the host: measure one that has"),
    ([Layout(1, b) for b in range(1, 7)], "moving",
     "no row moves anything between devices: measure one on 2 devices"),
    ([Layout(2, b, "host") for b in range(1, 7)], "update",
     "from row to row it changes as fixed and moving do"),
    ([Layout(n, 10) for n in (1, 2, 3, 4, 5)], "arithmetic",
     "from row to row it changes as fixed does"),
    ([Layout(n, 48 // n) for n in (1, 2, 3, 4, 6)], "input",
     "from row to row it changes as fixed does"),
])  # fmt: skip
def test_what_the_rows_cannot_tell_is_said(layouts, term, why):
    measured = rows(SMALL, layouts, COST)
    assert fit(SMALL, measured).unidentified[term] == why
    assert fit(SMALL, measured).worst < 1e-9  # the rows themselves are fitted all the same


def test_a_layout_of_which_the_rows_say_nothing_is_not_predicted():
    found = fit(SMALL, rows(SMALL, [Layout(n, b) for n in (1, 2) for b in (10, 20)], COST))
    assert found.predict(Layout(3, 40)).total == pytest.approx(0.08 + 0.005 + 0.016)
    sentence = (
        "the rows do not tell what 2 devices x 10, variables on the host takes. update: no row has "
        "its variables on the host: measure one that has."
    )
    with pytest.raises(ValueError) as caught:
        found.predict(Layout(2, 10, "host"))
    assert str(caught.value) == sentence
    # Update and moving go together here, and still the sum of both is known at the same count.
    host = fit(SMALL, rows(SMALL, [Layout(2, b, "host") for b in (1, 2, 3, 5)], COST))
    assert host.predict(Layout(2, 9, "host")).total == pytest.approx(0.018 + 0.012 + 0.016)
    with pytest.raises(ValueError, match="do not tell what 3 devices x 9"):
        host.predict(Layout(3, 9, "host"))


def test_repeats_do_not_help_each_other():
    answers = holdout(NET_001, SEED_001)
    alone = fit(NET_001, [m for m in SEED_001 if m.layout != SEED_001[2].layout])
    wanted = alone.predict(SEED_001[2].layout).total
    assert answers[2].seconds == answers[3].seconds == wanted
    assert answers[2].error == wanted / SEED_001[2].seconds - 1


def test_nineteen_of_twenty_new_steps_lie_in_the_interval():
    draw = np.random.default_rng(5)
    cost, inside, tried = Cost(1e-4, 5e-3, 5e-3, 1e-10), 0, 150
    new = Layout(16, 128)
    true = step_time(NET_001, new, cost).total
    for _ in range(tried):
        found = fit(NET_001, rows(NET_001, VARIED, cost, draw.normal(0, 0.05, len(VARIED))))
        low, high = interval(found, new)
        inside += low < true * math.exp(draw.normal(0, 0.05)) < high
    assert 0.90 <= inside / tried <= 0.99


def test_the_interval_is_wider_further_from_the_rows_and_closes_without_scatter():
    def width(found, layout):
        low, high = interval(found, layout)
        return high / low

    assert 1.2 < width(FIT, Layout(2, 256, "host")) < width(FIT, Layout(8, 256, "host"))
    assert width(FIT, Layout(8, 256, "host")) < width(FIT, Layout(64, 256, "host"))
    exact = fit(NET_001, rows(NET_001, VARIED, Cost(1e-4, 5e-3, 5e-3, 1e-10)))
    assert width(exact, Layout(64, 256)) == pytest.approx(1)


# More devices


def test_central_and_ring_by_hand():
    cost, link = replace(COST, input=1e-4), Link("slow", 1e5, 1e4, 1e6, 0.25, "made up")
    assert central(SMALL, cost, 4, 10) == step_time(SMALL, Layout(4, 10), cost)
    assert astuple(central(SMALL, cost, 4, 2.5, link)) == pytest.approx(
        (0.005, 0.005, 0, 6 * 4000 / 1e5, 1e-4 * 10, 6 * 0.25)
    )
    assert astuple(ring(SMALL, cost, 4, 2.5, link)) == pytest.approx(
        (0.005, 0.005, 0, 6 / 4 * 4000 / 1e5, 1e-4 * 10, 6 * 0.25)
    )
    assert ring(SMALL, cost, 1, 10, link) == central(SMALL, cost, 1, 10) == Parts(
        0.02, 0.005, input=1e-3
    )  # fmt: skip


def test_speed_up_counts_examples():
    cost = Cost(1e-3, 0.01, 0, 1e-6)  # 4 ms to move the parameters once
    weak = speedup(central, SMALL, cost, 3, per_device_batch=30)
    assert weak == pytest.approx(3 * 40 / (40 + 16))
    strong = speedup(central, SMALL, cost, 3, global_batch=30)
    assert strong == pytest.approx(40 / (10 + 10 + 16))
    assert speedup(ring, SMALL, cost, 1, global_batch=30) == 1


def test_efficiency_has_the_band_of_its_link():
    counts = (1, 2, 8, 1024)
    curve = efficiency(ring, NET_001, FIT.cost, counts, per_device_batch=128, link=PCIE_3)
    for name, bandwidth in (("low", 5e9), ("middle", 8e9), ("high", 12e9)):
        link = replace(PCIE_3, bandwidth=bandwidth)
        wanted = [
            speedup(ring, NET_001, FIT.cost, n, per_device_batch=128, link=link) / n for n in counts
        ]
        assert getattr(curve, name) == pytest.approx(wanted)
    assert curve.low[1:] < curve.middle[1:] < curve.high[1:] and curve.middle[0] == 1
    plain = efficiency(central, NET_001, FIT.cost, counts, global_batch=1024)
    assert plain.low == plain.middle == plain.high and plain.counts == counts


costs = st.builds(
    Cost,
    arithmetic=st.floats(1e-6, 1e-2), fixed=st.floats(0, 1e-1),
    moving=st.floats(1e-12, 1e-7), latency=st.floats(1e-6, 1e-3),
    input=st.sampled_from([0.0, 1e-6, 1e-4]),
)  # fmt: skip
way = pytest.mark.parametrize("way", [central, ring])


@way
@given(cost=costs, batch=st.integers(1, 5000))
def test_the_fastest_count_is_that_of_a_search(way, cost, batch):
    found = knee(way, NET_004, cost, global_batch=batch)
    gains = [speedup(way, NET_004, cost, n, global_batch=batch) for n in range(1, 1025)]
    if found.devices <= 1024:
        assert max(gains) == pytest.approx(found.most, rel=1e-9)
        assert gains[found.devices - 1] == pytest.approx(found.speedup, rel=1e-9)
    else:
        assert gains == sorted(gains) and found.most > gains[-1]


@way
@given(cost=costs, batch=st.integers(1, 5000))
def test_half_of_the_ceiling_is_reached_where_a_search_finds_it(way, cost, batch):
    found = knee(way, NET_004, cost, per_device_batch=batch)
    gains = [speedup(way, NET_004, cost, n, per_device_batch=batch) for n in range(1, 1025)]
    assert max(gains) <= found.most * (1 + 1e-9)
    ceiling = speedup(way, NET_004, cost, 10**13, per_device_batch=batch)
    assert found.most == pytest.approx(max(1, ceiling), rel=1e-5)
    below = max((n for n, gain in enumerate(gains, 1) if gain < ceiling / 2), default=0)
    assume(abs(found.devices - round(found.devices)) > 1e-6 or found.devices == 1)
    assert below <= found.devices and (below in (0, 1024) or found.devices < below + 1)
    if found.devices > 1:
        assert found.speedup == pytest.approx(ceiling / 2, rel=1e-5)


def test_the_closed_forms_of_central_averaging():
    c, f0, q = 1e-4, 4e-3, 2 * NET_001.bytes / 8e9
    cost = Cost(c, f0, 0, 1 / 8e9)
    weak = knee(central, NET_001, cost, per_device_batch=512)
    assert weak.most == pytest.approx((f0 + 512 * c) / q)
    assert weak.devices == pytest.approx(weak.most - 1)
    strong = knee(central, NET_001, cost, global_batch=8192)
    assert abs(strong.devices - math.sqrt(c * 8192 / q)) < 1


def test_where_nothing_has_to_cross_more_devices_always_pay():
    free = Cost(1e-3, 1e-2)
    assert astuple(knee(ring, SMALL, free, per_device_batch=10)) == (math.inf,) * 3
    ends = knee(central, SMALL, free, global_batch=90)
    assert ends.devices == math.inf and ends.most == pytest.approx(0.1 / 0.01)
    assert knee(ring, SMALL, Cost(1e-9, 0, 0, 1), global_batch=10).devices == 1


@pytest.mark.parametrize("link", [PCIE_3, NVLINK_3, ETHERNET_100G])
def test_every_link_says_where_its_numbers_come_from(link):
    assert link.low < link.bandwidth < link.high
    assert link.source.count("NVIDIA/nccl") >= 2 and "tuning.cc" in link.source
    assert COST.over(link).moving * link.bandwidth == pytest.approx(1)


# Mistakes


def changed(**wrong):
    return replace(Link("wire", 2.0, 1.0, 3.0, 0.0, "made up"), **wrong)


@pytest.mark.parametrize("mistake, sentence", [
    (lambda: Measurement(Layout(1, 8), 0.0),
     "1 device x 8: seconds=0.0 is not the time of a step: use a finite number above 0."),
    (lambda: Measurement(Layout(1, 8), -1), "1 device x 8: seconds=-1 is not"),
    (lambda: Measurement(Layout(1, 8), math.nan), "1 device x 8: seconds=nan is not"),
    (lambda: Measurement(Layout(1, 8), math.inf), "1 device x 8: seconds=inf is not"),
    (lambda: Measurement(Layout(1, 8), "1 s"), "1 device x 8: seconds='1 s' is not"),
    (lambda: Layout(0, 8),
     "devices=0 is not a number of devices: use a whole number, 1 or more."),
    (lambda: Layout(2, 2.5), "per_device_batch=2.5 is not a batch size: use a whole number"),
    (lambda: Layout(2, 8, "cpu"), "variables='cpu' is not known: use device or host."),
    (lambda: Layout(2, 8, path="pipe"), "path='pipe' is not known: use data or split."),
    (lambda: Layout(1, 8, path="split"),
     "a model split over 1 device is not in the cost model: use devices=2."),
    (lambda: Workload("x", 0, 1), "parameters=0 is not a number of parameters"),
    (lambda: Workload("x", 1, 0), "flops=0 is not a number of FLOP"),
    (lambda: Workload("x", 1, 1, 0), "split_bytes=0 is not a number of bytes"),
    (lambda: Workload.of(models.seed_001(), cut="conv3"),
     "seed_001 cannot be cut before 'conv3': use one of conv2, fc1, drop1, output."),
    (lambda: step_time(NET_004, Layout(2, 8, path="split"), COST),
     "seed_004 has no split_bytes, so a split model's traffic is not known: use Workload.of("),
    (lambda: Cost(-1e-3, 0), "arithmetic=-0.001 is not a cost: use a finite number, 0 or more."),
    (lambda: Cost(1, math.nan), "fixed=nan is not a cost"),
    (lambda: changed(low=2.5),
     "wire: bandwidth=2.0, low=2.5, high=3.0, latency=0.0 do not fit: use 0 < low <="),
    (lambda: changed(latency=-1), "wire: bandwidth=2.0"),
    (lambda: fit(NET_001, []),
     "0 rows cannot tell 4 coefficients: measure 4 more, or fit fewer terms."),
    (lambda: fit(NET_001, SEED_001[:3]), "3 rows cannot tell 4 coefficients: measure 1 more"),
    (lambda: fit(NET_001, SEED_001, ["magic"]),
     "terms=('magic',) cannot be fitted: use some of arithmetic, fixed, update, moving, input, "
     "latency, once."),
    (lambda: fit(NET_001, SEED_001, ["fixed", "fixed"]), "terms=('fixed', 'fixed') cannot"),
    (lambda: fit(NET_001, SEED_001, []), "terms=() cannot"),
    (lambda: holdout(NET_001, SEED_001, "gpu"),
     "by='gpu' is not known: use one of layout, devices, per_device_batch, variables, path."),
    (lambda: interval(fit(NET_001, SEED_001[:4]), Layout(1, 8)),
     "4 rows and 4 coefficients leave nothing to tell the spread by: measure 1 more row."),
    (lambda: central(NET_001, COST, 0, 8), "n=0 is not a number of devices"),
    (lambda: ring(NET_001, COST, 2, 0), "batch=0 is not a batch size"),
    (lambda: speedup(ring, NET_001, COST, 2),
     "per_device_batch=None and global_batch=None: give one of them, the one that stays the same "
     "on any number of devices."),
    (lambda: speedup(ring, NET_001, COST, 0, global_batch=8), "n=0 is not"),
    (lambda: knee(ring, NET_001, COST, global_batch=1, per_device_batch=1),
     "per_device_batch=1 and global_batch=1: give one"),
    (lambda: knee(step_time, NET_001, COST, global_batch=1),
     "this way of averaging has no closed form: use central or ring."),
    (lambda: feasible(NET_001, 0, 1, 1), "examples=0 is not a number of examples"),
    (lambda: feasible(NET_001, 1, 0, 1), "seconds=0 is not a time"),
    (lambda: feasible(NET_001, 1, 1, -1), "peak_flops=-1 is not a peak in FLOP/s"),
])  # fmt: skip
def test_a_mistake_gets_one_sentence(mistake, sentence):
    with pytest.raises(ValueError) as caught:
        mistake()
    assert str(caught.value).startswith(sentence) and str(caught.value).endswith(".")


def test_a_fit_without_arithmetic_or_moving_has_no_speed_to_imply():
    empty = Fit(SMALL, tuple(rows(SMALL, VARIED, COST)), ("fixed",), Cost(0, 1), {})
    assert empty.flops is None and empty.bandwidth is None


def test_importing_scaling_does_not_import_tensorflow():
    code = "import sys, mgpu_helpers.scaling; print('tensorflow' in sys.modules)"
    assert run_python(code, PYTHONPATH=str(ROOT / "src")).stdout == "False\n"
