"""Published tables on this machine, and a cost model asked about rows it has not seen.

python benchmarks/scaling.py    writes results/scaling.json (lessons 19 and 20)
"""

from __future__ import annotations

from statistics import median

import numpy as np

import _cards as results
from _rounds import several
from _steps import Step
from mgpu_helpers import devices, scaling, timing
from mgpu_helpers.lessons import networks, published
from mgpu_helpers.scaling.fitting import Fit

WIDTH = 0.25
OWN = (64, 128, 256, 512)  # per-device batches that the model is fitted to
SHARED = 840  # the global batch of the P40 note's network


def notebook() -> dict[str, scaling.Measurement]:
    """List the settings of the tensorlight notebook once each, with what they took there."""
    apart = published.TENSORLIGHT_APART
    named = {"CPU only": apart["CPU only"], "split, colocated": published.TENSORLIGHT_SPLIT}
    named["split, not colocated"] = apart["not colocated"]
    return named | {repr(row.setting): row for row in published.TENSORLIGHT}


def off(fitted: Fit, row: scaling.Measurement) -> float:
    """Give the error of what is predicted for a row."""
    return fitted.predict(row.setting).total / row.seconds - 1


def forecasts(ratios: list[results.Ratio]) -> dict[str, dict[str, float]]:
    """Predict 8 GPUs of TensorFlow's own benchmarks, print each, and add the errors' ratios."""
    numbers = {}
    for machine, table in (("P100", published.DGX_1), ("K80", published.K80)):
        errors = numbers[machine] = {}
        for work, rows in table:
            fitted = scaling.fit(work, [row for row in rows if row.setting.devices < 8])
            for row in (row for row in rows if row.setting.devices == 8):
                errors[f"{work.name}, {row.setting}"] = round(off(fitted, row), 4)
                print(f"{machine:5}{work.name:12} {row.setting!r:38} {row.seconds:.3g} s, from 1, "
                      f"2 and 4 GPUs: {fitted.predict(row.setting).total}")  # fmt: skip
        name = f"8 {machine} from 1, 2 and 4, error"
        ratios.append(results.Ratio.of(name, np.abs([*errors.values()]), 0.10, at_least=False))
    return numbers


def main() -> None:
    plan = devices.setup(8, exact=True)
    print(plan)
    network, table = networks.tensorlight(width=WIDTH), notebook()
    steps = {
        name: Step(plan, network, row.setting, name == "CPU only", "not" not in name)
        for name, row in table.items()
    }
    times = several(steps, warmup=2, share=1 / 3)

    def share(name: str, seconds: float) -> float:
        return seconds / table[name].setting.global_batch_size

    one, rows, ratios = "1 device x 128", {}, []
    print(f"{'an example, relative to one device':40}   here  there   2000 steps   held")
    for name, timed in times.items():
        here = share(name, timed.median) / share(one, times[one].median)
        there = share(name, table[name].seconds) / share(one, table[one].seconds)
        held, beyond = steps[name].held(), table[name].setting.devices > plan.cores
        rows[name] = {
            "ms_a_batch": round(1e3 * timed.median, 2), "of_one_device": round(here, 3),
            "published_of_one_device": round(there, 3), "held_MB": round(held / 1e6, 1),
            "more_devices_than_cores": beyond,
        }  # fmt: skip
        print(f"{name:40} {here:6.2f} {there:6.2f} {2000 * timed.median:9.0f} s "
              f"{held / 1e6:6.0f} MB{'   more devices than cores' if beyond else ''}")  # fmt: skip
    distinguishable = {}
    for a, b in ((one, "CPU only"), (one, f"{one}, variables on the host"),
                 ("split, not colocated", "split, colocated")):  # fmt: skip
        compared = timing.Comparison(times[a], times[b], (a, b))
        distinguishable[f"{b}, from {a}"] = compared.distinguishable
        print(compared)
    two = [a / b for a, b in zip(times[one].seconds,
           times["2 devices x 128, variables on the host"].seconds, strict=True)]  # fmt: skip
    ratios.append(results.Ratio.of("2 devices x 128, speed-up", [2 * r for r in two]))
    del steps

    small = networks.p40(width=WIDTH)
    shared = several(
        {n: Step(plan, small, scaling.Setting(n, SHARED // n)) for n in (1, 2, 4, 8)},
        warmup=2, share=1 / 2,
    )  # fmt: skip
    for n, timed in shared.items():
        theirs = published.P40[0].seconds / published.P40[(1, 2, 4, 8).index(n)].seconds
        gain = [a / b for a, b in zip(shared[1].seconds, timed.seconds, strict=True)]
        if n > 1:
            ratios.append(results.Ratio.of(f"P40 note, {n} devices, speed-up", gain))
        print(f"P40 note on {n}: {1e3 * timed.median:.1f} ms; {median(gain):.2f} times, "
              f"there {theirs:.2f}")  # fmt: skip

    settings = [scaling.Setting(n, b) for n in range(1, min(2, plan.cores) + 1) for b in OWN]
    taken = several({setting: Step(plan, network, setting) for setting in settings}, warmup=2)
    own = [scaling.Measurement(setting, timed.median) for setting, timed in taken.items()]
    terms = ("arithmetic", "fixed", "moving")[: settings[-1].devices + 1]
    work = networks.workload(network)
    print(scaling.fit(work, own, terms))
    left_out = {
        row: abs(off(scaling.fit(work, [other for other in own if other != row], terms), row))
        for row in own
    }
    spread = np.quantile([*left_out.values()], [0.25, 0.5, 0.75])
    low, middle, high = (round(float(q), 4) for q in spread)
    ratios.append(results.Ratio("rows left out, error", middle, 0.15, False, low, high))
    forecast = forecasts(ratios)
    print(*ratios, sep="\n")
    numbers = {
        "width": WIDTH,
        "rounds": {str(kind): len(next(iter(each.values())).seconds)
                   for kind, each in (("notebook", times), ("P40 note", shared), ("own", taken))},
        "tensorlight": rows,
        "distinguishable": distinguishable,
        "p40_ms": {str(n): round(1e3 * timed.median, 2) for n, timed in shared.items()},
        "left_out_error": {repr(row.setting): round(float(error), 4)
                           for row, error in left_out.items()},
        "eight_gpus_error": forecast,
    }  # fmt: skip
    results.write("scaling", plan, numbers, ratios)


if __name__ == "__main__":
    main()
