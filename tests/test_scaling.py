"""The cost model against hand counts, published rows and chance."""

from __future__ import annotations

import math
import re
from dataclasses import astuple, replace

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from mgpu_helpers.fit import Layout
from mgpu_helpers.lessons import networks, published
from mgpu_helpers.lessons.published import TENSORLIGHT, TENSORLIGHT_APART
from mgpu_helpers.scaling import Cost, Link, Measurement, Setting, Workload, fit, links, speedup
from mgpu_helpers.scaling.fitting import matrix, solve
from mgpu_helpers.scaling.model import TERMS, Breakdown, Estimate, step_time

NOTEBOOK = networks.workload(networks.tensorlight(), cut="conv2")
FIT = fit(NOTEBOOK, TENSORLIGHT)
GPUS = tuple(f"/GPU:{i}" for i in range(4))
THREE = ("arithmetic", "fixed", "moving")
SMALL = Workload("small", 1000, 5e6)  # 4000 bytes of parameters
COST = Cost(2e-3, 5e-3, 7e-3, 1e-6)
VARIED = [  # enough to tell four terms, and the serial input too
    Setting(n, b, v) for n, b, v in (
        (1, 128, "device"), (1, 512, "device"), (1, 128, "host"), (2, 128, "host"),
        (2, 512, "device"), (3, 256, "host"), (4, 64, "device"), (4, 768, "host"),
        (8, 32, "device"), (8, 256, "host"),
    )
]  # fmt: skip


def rows(workload, settings, cost, scatter=0.0, seed=0):
    """Make measurements of a cost whose logarithms scatter so much."""
    draw = np.random.default_rng(seed)
    return [
        Measurement(each, step_time(workload, each, cost).total * math.exp(draw.normal(0, scatter)))
        for each in settings
    ]


# Published rows


def test_the_notebook_is_described_and_predicts_what_was_left_out():
    """Regression guards: what these rows gave when the model was chosen, with a little room."""
    assert NOTEBOOK.split_bytes == 2 * 14 * 14 * 64 * 4  # the images there, and their gradients
    assert FIT.terms == TERMS[:4] and set(FIT.unidentified) == {"input", "latency"}
    assert 2.2e12 <= NOTEBOOK.flops / FIT.cost.arithmetic <= 3e12
    assert 6e9 <= 1 / FIT.cost.moving <= 13e9 and min(astuple(FIT.cost)[:4]) > 0
    few, three = ([m for m in TENSORLIGHT if (m.setting.devices == 3) is w] for w in (False, True))
    third, found = TENSORLIGHT_APART["third run"], fit(NOTEBOOK, few)
    for of, table, least, most in (
        (FIT, TENSORLIGHT, 0, 0.10), (found, three, 0, 0.10), (FIT, [third], 0.35, 0.45),
        (FIT, [published.TENSORLIGHT_SPLIT], 0, 0.05),  # needs no cost of its own
    ):  # fmt: skip
        errors = [abs(of.predict(row.setting).total / row.seconds - 1) for row in table]
        assert all(least <= error <= most for error in errors)
    for row in (*TENSORLIGHT, third):
        got = FIT.predict(row.setting)
        assert (got.low < row.seconds < got.high) == (row in TENSORLIGHT)


# The arithmetic


@pytest.mark.parametrize("setting, parts", [
    # two milliseconds an example, one byte a microsecond, 4000 bytes of parameters
    (Setting(1, 10), Breakdown(0.02, 0.005)),
    (Setting(1, 10, "host"), Breakdown(0.02, 0.005, 0.007, 2 * 0.004, latency=2 * 0.1)),
    (Setting(3, 10), Breakdown(0.02, 0.005, 0, 4 * 0.004, latency=4 * 0.1)),
    (Setting(4, 10, "ring"), Breakdown(0.02, 0.005, 0, 1.5 * 0.004, latency=6 * 0.1)),
    (Setting(2, 10, path="split"), Breakdown(0.02, 0.005, 0, 0.003, latency=2 * 0.1)),
    (Setting(2, 10, "host", "split"),
     Breakdown(0.02, 0.005, 0.007, 0.003 + 0.008, latency=4 * 0.1)),
])  # fmt: skip
def test_the_parts_of_a_step_by_hand(setting, parts):
    cost = replace(COST, latency=0.1, input=0.5)
    parts = replace(parts, input=0.5 * 10 * (setting.devices if setting.path == "data" else 1))
    found = step_time(replace(SMALL, split_bytes=300), setting, cost)
    assert astuple(found)[:6] == pytest.approx(astuple(parts)[:6])
    assert found.total == pytest.approx(sum(astuple(parts)[:6]))


@pytest.mark.parametrize("layout, batch, setting", [
    (Layout(GPUS), 40, Setting(4, 10)),
    (Layout(GPUS[:3], state="host", synchronized=False), 10, Setting(3, 10 / 3, "host")),
    (Layout(GPUS[:2], stages=2), 10, Setting(2, 10, path="split")),
    (Layout(GPUS[:2], stages=["b"], state="host"), 10, Setting(2, 10, "host", "split")),
])  # fmt: skip
def test_a_layout_and_a_batch_are_a_setting(layout, batch, setting):
    found = Setting.of(layout, batch)
    assert found == setting and repr(found) == repr(setting)
    assert found.global_batch_size == pytest.approx(batch)


@pytest.mark.parametrize("layout", [
    Layout(), Layout(GPUS, stages=2), Layout(GPUS, state="owners"), Layout(GPUS, pieces=2),
], ids=repr)  # fmt: skip
def test_a_layout_that_is_not_counted_is_named(layout):
    with pytest.raises(ValueError, match=re.escape(f"{layout}: what it costs is not counted")):
        Setting.of(layout, 8)


# Fits

ten, few = st.floats(0.1, 10), settings(max_examples=40)


@few
@given(ten, ten, ten, ten, ten, st.booleans())
def test_rows_without_noise_give_the_cost_back(c, f, u, m, i, in_a_ring):
    settings, terms = VARIED, TERMS[:5]
    cost = Cost(1e-4 * c, 5e-3 * f, 5e-3 * u, 1e-10 * m, 2e-5 * i)
    if in_a_ring:  # which tells bytes from messages
        cost = replace(cost, update=0.0, latency=1e-3 * u)
        settings = [Setting(n, b, "ring") for n in (1, 2, 3, 4, 8) for b in (32, 64)]
        terms = [term for term in TERMS if term != "update"]
    found = fit(NOTEBOOK, rows(NOTEBOOK, settings, cost), terms)
    assert astuple(found.cost) == pytest.approx(astuple(cost), rel=1e-6, abs=1e-30)
    assert not set(found.unidentified) & set(terms) and max(map(abs, found.errors)) < 1e-9


@given(st.integers(1, 6), st.integers(0, 8), st.integers(0, 2**32 - 1))
@example(6, 3, 582077802)  # a 0 that comes back as 1e-17
def test_a_solution_is_0_or_more_and_cannot_be_improved(columns, more, seed):
    """Down or, where a cost is 0, up: the conditions of Karush, Kuhn and Tucker."""
    table = np.random.default_rng(seed).normal(size=(columns + more, columns))
    table /= np.linalg.norm(table, axis=0)
    found, squares = solve(table)
    left = 1 - table @ found
    slope = left @ table
    assert found.min() >= 0 and squares == pytest.approx(left @ left)
    assert slope.max() < 1e-9 and slope[found > 0] == pytest.approx(0, abs=1e-9)


@few
@given(st.integers(0, 2**32 - 1))
def test_a_term_is_told_when_an_f_test_says_so(seed):
    found = fit(NOTEBOOK, rows(NOTEBOOK, VARIED, Cost(1e-4, 2e-3, 2e-3, 2e-11), 0.06, seed))
    assume(min(astuple(found.cost)[:4]) > 0)
    table, _ = matrix(NOTEBOOK, found.measurements, TERMS[:4])
    ones, spare = np.ones(len(table)), len(table) - 4
    (full,) = np.linalg.lstsq(table, ones, rcond=None)[1]
    for i, term in enumerate(TERMS[:4]):
        less = scipy.optimize.nnls(np.delete(table, i, 1), ones)[1] ** 2
        chance = scipy.stats.f.sf((less - full) / (full / spare), 1, spare)
        assume(abs(chance - 0.05) > 1e-3)
        assert (term not in found.unidentified) == (chance < 0.05)
    for variables, terms in (("host", TERMS[:4]), ("device", THREE)):
        vague = ", ".join(term for term in terms if term in found.unidentified)
        doubts = found.predict(Setting(2, 256, variables)).doubts
        assert doubts == ((f"the rows do not determine {vague}",) if vague else ())


@pytest.mark.parametrize("settings, fitted, term, why", [
    ([Setting(n, b) for n in (1, 2) for b in (10, 20, 30)], THREE, "update", "on the host"),
    ([Setting(1, b) for b in range(1, 7)], THREE[:2], "moving", "on 2 devices"),
    ([Setting(n, 10) for n in (1, 2, 3, 4, 5)], ("arithmetic", "moving"), "fixed",
     "as arithmetic does"),
    ([Setting(n, 48 // n) for n in (1, 2, 3, 4, 6)], THREE, "input", "as fixed does"),
])  # fmt: skip
def test_what_the_rows_cannot_tell_is_not_fitted_and_said(settings, fitted, term, why):
    found = fit(SMALL, rows(SMALL, settings, COST))
    assert found.terms == fitted and why in found.unidentified[term]
    assert max(map(abs, found.errors)) < 1e-9  # the rows themselves are fitted all the same


def test_a_setting_of_which_the_rows_say_nothing_is_not_predicted():
    found = fit(SMALL, rows(SMALL, [Setting(n, b) for n in (1, 2) for b in (10, 20)], COST))
    assert found.predict(Setting(3, 40)).total == pytest.approx(0.08 + 0.005 + 0.016)
    # Update and moving go together here, and still the sum of both is known at the same count.
    host = fit(SMALL, rows(SMALL, [Setting(2, b, "host") for b in (1, 2, 3, 5)], COST))
    assert "as fixed does" in host.unidentified["update"]
    assert host.predict(Setting(2, 9, "host")).total == pytest.approx(0.018 + 0.012 + 0.016)
    one = fit(SMALL, rows(SMALL, [Setting(1, b) for b in (32, 64, 128, 256)], COST, 0.01))
    assert speedup(one, Setting(8, 4, "ring"), link=links.PCIE_3).low > 1  # not theirs to tell
    for ask, named in ((lambda: found.predict(Setting(2, 10, "host")), "on the host.*update"),
                       (lambda: host.predict(Setting(3, 9, "host")), "3 devices x 9"),
                       (lambda: speedup(one, Setting(8, 4)), "8 devices x 4 .*moving"),
                       (lambda: fit(SMALL, []), "small"),
                       (lambda: fit(NOTEBOOK, [*TENSORLIGHT, Measurement(Setting(1, 128), 0.1)]),
                        "1 device x 128 took 0.0185 s .*0.1 s")):  # fmt: skip
        with pytest.raises(ValueError, match=named):
            ask()


# How far a prediction may be off


def test_the_band_of_a_link_is_in_the_interval_of_a_speed_up():
    eight, speed = Setting(8, 128, "ring"), 1 / FIT.cost.moving
    found = speedup(FIT, eight)
    sure, wide = (speedup(FIT, eight, link=Link("as fitted", speed, low, high, 0))
                  for low, high in ((speed, speed), (speed / 2, 2 * speed)))  # fmt: skip
    assert found == pytest.approx(sure) and sure == wide
    assert found.low < sure.low < sure < sure.high < found.high  # what moving takes is known
    assert wide.low < found.low and found.high < wide.high


def test_the_interval_is_wider_further_from_the_rows_and_closes_without_scatter():
    def width(found, n):
        got = found.predict(Setting(n, 256, "host"))
        return got.high / got.low

    assert 1.2 < width(FIT, 2) < width(FIT, 8) < width(FIT, 64)
    exact = fit(NOTEBOOK, rows(NOTEBOOK, VARIED, Cost(1e-4, 5e-3, 5e-3, 1e-10)))
    assert width(exact, 64) == pytest.approx(1)
    assert "8 devices, where the rows have 3 at most" in repr(FIT.predict(Setting(8, 256)))
    doubt = "a per-device batch of 16, where the rows have 128 to 768"
    assert doubt in FIT.predict(Setting(2, 16)).doubts
    got = FIT.predict(Setting(8, 256))
    assert (got.total.low, got.total.high) == (got.low, got.high)


def test_nineteen_of_twenty_new_steps_and_speed_ups_lie_between_low_and_high():
    cost, new, one = Cost(1e-4, 5e-3, 5e-3, 1e-10), Setting(16, 128), Setting(1, 128)
    taken, alone = (step_time(NOTEBOOK, each, cost).total for each in (new, one))
    draw, steps, gains, tried = np.random.default_rng(5), 0, 0, 150
    for seed in range(tried):
        found = fit(NOTEBOOK, rows(NOTEBOOK, VARIED, cost, 0.05, seed))
        got, gain = found.predict(new), speedup(found, new)
        here, there = np.exp(draw.normal(0, 0.05, 2))
        steps += got.low < taken * here < got.high
        gains += gain.low < 16 * alone * there / (taken * here) < gain.high
    assert 0.90 <= steps / tried <= 0.99 and 0.90 <= gains / tried <= 0.99


def test_a_speed_up_counts_examples():
    cost = Cost(1e-3, 0.01, 0, 1e-6)  # 4 ms to move the parameters once
    exact = fit(SMALL, rows(SMALL, [Setting(n, b) for n in (1, 2, 4) for b in (8, 32)], cost))
    assert speedup(exact, Setting(3, 30)) == pytest.approx(3 * 40 / (40 + 16))
    alone = speedup(FIT, Setting(1, 128))
    assert (alone, alone.low, alone.high) == (1, 1, 1)


def test_without_spare_rows_there_is_no_interval_and_a_doubt_says_so():
    found = fit(SMALL, rows(SMALL, [Setting(1, 32), Setting(1, 64), Setting(2, 64)], COST))
    for got in (found.predict(Setting(2, 32)).total, speedup(found, Setting(2, 64))):
        assert got.low is None and got.high is None
        assert got.doubts == ("3 rows and 3 coefficients leave nothing to tell the spread by",)
    assert repr(Estimate(3.8, 3.0, 4.9)) == f"{Estimate(3.8, 3.0, 4.9)}" == "3.8 (3 to 4.9)"
    assert 2 * Estimate(3.8) == 7.6 and repr(Estimate(3.8, 3.0)) == "3.8"


@pytest.mark.parametrize("mistake, named", [
    (lambda: Measurement(Setting(1, 8), math.nan), "1 device x 8: seconds=nan"),
    (lambda: Setting(0, 8), "devices=0"),
    (lambda: Setting(2, 8, "cpu"), "variables='cpu'"),
    (lambda: Setting(3, 8, path="split"), "path='split' on 3"),
    (lambda: Setting(2, 8, "ring", "split"), "variables='ring'"),
    (lambda: Workload("x", 0, 1), "x: parameters=0"),
    (lambda: step_time(SMALL, Setting(2, 8, path="split"), COST), "small .*split_bytes"),
    (lambda: Link("wire", 2.0, 2.5, 3.0, 0.0), "wire.*low=2.5"),
    *((lambda none=none: Cost(1e-3, moving=none), f"moving={none!r}")
      for none in (-1e-9, math.inf, math.nan)),
])  # fmt: skip
def test_what_would_be_silent_is_a_value_error_that_names_it(mistake, named):
    with pytest.raises(ValueError, match=named):
        mistake()
