"""Timing against a stand-in clock for exact numbers, and against the real one for sense."""

from __future__ import annotations

import gc
import math
import time

import numpy as np
import pytest

from mgpu_helpers.timing import Comparison, Timing, compare, measure, several


@pytest.fixture
def clock(monkeypatch):
    """Give a clock that moves only when told: call it with the seconds that passed."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def passes(length: float) -> None:
        now[0] += length

    return passes


def taking(clock, lengths):
    """Give a function that takes these seconds, call after call."""
    left = iter(lengths)
    return lambda: clock(next(left))


@pytest.mark.parametrize("lengths, text", [
    ([0.0119, 0.0123, 0.0128], "12.3 ms (12.1 to 12.6, 3 runs)"),
    ([123.4] * 4, "123 s (123 to 123, 4 runs)"),
    ([45.6e-6, 47.6e-6], "46.6 µs (46.1 to 47.1, 2 runs)"),
    ([0.9999e-3], "1.00 ms (1.00 to 1.00, 1 run)"),  # not "1000 µs"
    ([0.0], "0 µs (0 to 0, 1 run)"),
])  # fmt: skip
def test_timing_prints(lengths, text):
    assert repr(Timing(tuple(lengths))) == text


def test_warmup_is_not_counted_and_nothing_takes_no_time_at_all(clock):
    timing = measure(taking(clock, [50, 60, 1, 2, 3, 4, 5]), warmup=2, repeats=5)
    assert timing.seconds == (1, 2, 3, 4, 5)
    assert (timing.median, timing.low, timing.high) == (3, 2, 4)
    assert compare(lambda: None, lambda: None, warmup=0, repeats=5).ratio == 1


def test_drift_hits_both(clock):
    """A machine that slows down tenfold during the run does not change the ratio."""
    drift = [1 + i for i in range(10)]
    a = taking(clock, [1.5 * d for d in drift])
    found = compare(a, taking(clock, drift), warmup=0, repeats=10)
    assert (found.low, found.ratio, found.high) == pytest.approx((1.5, 1.5, 1.5))


@pytest.mark.parametrize("ratios, differ, text", [
    ([1.79, 1.79, 1.83, 1.88, 1.88], True,
     "two: 1.83 times as fast as one (1.79 to 1.88, 5 pairs)"),
    ([0.5, 0.5, 0.5, 0.8, 0.8], True, "one: 2.00 times as fast as two (1.25 to 2.00, 5 pairs)"),
    ([0.94, 0.94, 0.98, 1.03, 1.03], False,
     "one and two cannot be told apart: times in ratio 0.980 (0.940 to 1.030, 5 pairs)"),
    ([1.001] * 5, False,
     "one and two cannot be told apart: times in ratio 1.00 (1.00 to 1.00, 5 pairs)"),
    ([1.8] * 4, False, "one and two cannot be told apart by fewer than 5 pairs: "
                       "times in ratio 1.80 (1.80 to 1.80, 4 pairs)"),
])  # fmt: skip
def test_comparison_prints(ratios, differ, text):
    names = "one", "two"
    found = Comparison(Timing(tuple(ratios)), Timing((1.0,) * len(ratios)), names)
    assert found.ratios == tuple(ratios) and found.distinguishable is differ
    assert repr(found) == text


@pytest.mark.parametrize("pairs, rank, chance", [
    (4, 1, 0.125), (5, 1, 0.0625), (8, 2, 0.0703), (20, 6, 0.0414), (40, 15, 0.0807),
])
def test_the_range_of_the_median_is_as_sure_as_it_says(pairs, rank, chance):
    ratios = np.random.default_rng(0).permutation(np.arange(1.0, pairs + 1))
    found = Comparison(Timing(tuple(ratios)), Timing((1.0,) * pairs))
    assert (found.low, found.high) == (rank, pairs + 1 - rank)
    outside = 2 * sum(math.comb(pairs, k) for k in range(rank)) / 2**pairs
    assert outside == pytest.approx(chance, abs=1e-4)


def test_several_ways_take_turns_as_often_as_a_setting_allows(monkeypatch):
    calls = []
    ways = {name: lambda name=name: calls.append(name) for name in "abc"}
    timings = several(ways, warmup=2, repeats=3)
    assert "".join(calls) == "abc" * 5
    assert {name: len(each.seconds) for name, each in timings.items()} == dict.fromkeys("abc", 3)
    monkeypatch.setenv("MGPU_REPEATS", "2")
    for warmup, repeats, timed, ran in ((5, 9, 2, 4), (0, 1, 1, 1)):
        calls.clear()
        assert len(measure(ways["a"], warmup=warmup, repeats=repeats).seconds) == timed
        assert len(calls) == ran


@pytest.mark.parametrize("on", [True, False])
def test_garbage_collection_is_off_while_timing_and_put_back_after_an_error(on):
    seen, was = [], gc.isenabled()

    def fails():
        seen.append(gc.isenabled())
        if len(seen) == 3:
            raise LookupError("mine")

    try:
        (gc.enable if on else gc.disable)()
        with pytest.raises(LookupError, match="mine"):
            measure(fails, warmup=1, repeats=9)
        assert seen == [on, False, False] and gc.isenabled() is on
    finally:
        (gc.enable if was else gc.disable)()


@pytest.mark.parametrize("wrong", [{"repeats": 0}, {"repeats": True}, {"warmup": -1}])
def test_bad_counts_are_named_before_anything_runs(wrong):
    calls = []
    with pytest.raises(ValueError, match="=".join(map(str, *wrong.items()))):
        measure(lambda: calls.append(1), **wrong)
    assert not calls
