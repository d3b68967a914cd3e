"""The tables of the seeds on this machine, and a cost model asked about rows it has not seen.

python benchmarks/scaling.py    writes results/scaling.json (lesson 08)
"""

from __future__ import annotations

from statistics import median

import numpy as np

from mgpu_helpers import data, devices, models, pipeline, results, scaling, timing, towers, trace

WIDTH, ROUNDS = 0.25, 9
OWN = (64, 128, 256, 512)  # per-device batches that the model is fitted to
SHARED = 840  # the global batch of seed 004's network


class Step:
    """A training step laid out over devices, with Adam, in a Session of its own."""

    def __init__(self, plan, network, layout: scaling.Layout, only_host=False, colocate=True):
        import tensorflow.compat.v1 as tf1

        split, on_host = layout.path == "split", layout.variables == "host" or only_host
        where = (plan.host,) if only_host else plan.devices[: layout.devices]
        home, self.devices = plan.host if on_host else where[0], (plan.host, *where)
        images, labels = data.digits(layout.global_batch_size)
        with tf1.Graph().as_default() as graph:
            with tf1.device(plan.host):
                x, y = (tf1.placeholder(each.dtype, each.shape) for each in (images, labels))
            made = self.in_two(network, where, colocate, x, y) if split else (
                self.in_towers(network, where, home, x, y)
            )  # fmt: skip
            with tf1.device(home):
                self.train = tf1.train.AdamOptimizer(1e-4).apply_gradients(list(made))
            init = tf1.global_variables_initializer()
        config = plan.session_config(devices=1 if split else len(where), soft_placement=True)
        self.session, self.feed = tf1.Session(graph=graph, config=config), {x: images, y: labels}
        self.session.run(init)

    @staticmethod
    def in_towers(network, where, home, x, y):
        import tensorflow.compat.v1 as tf1

        weights = models.classic(network, device=home)

        def tower(x, y):
            read = models.read(weights)
            loss = models.loss(models.logits(network, read, x), y)
            return tf1.gradients(loss, list(read.values()), colocate_gradients_with_ops=True)

        shards = towers.split((x, y), len(where))
        gradients = towers.run(tower, where, *zip(*shards, strict=True))
        return zip(towers.average(gradients, device=home), weights.values(), strict=True)

    @staticmethod
    def in_two(network, where, colocate, x, y):
        import tensorflow.compat.v1 as tf1

        stages = pipeline.stages(network, ["conv2"], where)
        for stage in stages:
            with tf1.device(stage.device):
                x = stage.function(stage.weights, x)
        with tf1.device(where[1]):
            loss = models.loss(x, y)
        weights = [weight for stage in stages for weight in stage.weights.values()]
        with tf1.device(where[0]):
            gradients = tf1.gradients(loss, weights, colocate_gradients_with_ops=colocate)
        return zip(gradients, weights, strict=True)

    def __call__(self) -> None:
        self.session.run(self.train, self.feed)

    def held(self) -> int:
        """Give the bytes that the fullest device holds of one step."""
        _, step = trace.session_step(self.session, self.train, self.feed)
        return max(step.peak(device) for device in self.devices)


def published() -> dict[str, scaling.Measurement]:
    """List the layouts of seed 001 once each, with what they took there."""
    apart = scaling.SEED_001_APART
    named = {"CPU only": apart["CPU only"], "split, colocated": scaling.SEED_001_SPLIT}
    named["split, not colocated"] = apart["not colocated"]
    return named | {repr(row.layout): row for row in scaling.SEED_001}


def in_turn(steps: dict) -> dict[str, timing.Timing]:
    return timing.in_turn(steps, warmup=2, repeats=ROUNDS)


def main() -> None:
    plan = devices.setup(8)
    print(plan)
    network, table = models.seed_001(width=WIDTH), published()
    steps = {
        name: Step(plan, network, row.layout, name == "CPU only", "not" not in name)
        for name, row in table.items()
    }
    times = in_turn(steps)

    def share(name: str, seconds: float) -> float:
        return seconds / table[name].layout.global_batch_size

    one, rows, ratios = "1 device x 128", {}, []
    print(f"{'an example, relative to one device':40}   here  there   2000 steps   held")
    for name, timed in times.items():
        here = share(name, timed.median) / share(one, times[one].median)
        there = share(name, table[name].seconds) / share(one, table[one].seconds)
        held, beyond = steps[name].held(), table[name].layout.devices > plan.cores
        rows[name] = {
            "ms_a_batch": round(1e3 * timed.median, 2), "of_one_device": round(here, 3),
            "published_of_one_device": round(there, 3), "held_MB": round(held / 1e6, 1),
            "more_devices_than_cores": beyond,
        }  # fmt: skip
        print(f"{name:40} {here:6.2f} {there:6.2f} {2000 * timed.median:9.0f} s "
              f"{held / 1e6:6.0f} MB{'   more devices than cores' if beyond else ''}")  # fmt: skip
    told = {}
    for a, b in ((one, "CPU only"), (one, f"{one}, variables on the host"),
                 ("split, not colocated", "split, colocated")):  # fmt: skip
        compared = timing.Comparison(times[a], times[b], (a, b))
        told[f"{b}, from {a}"] = compared.told
        print(compared)
    two = [a / b for a, b in zip(times[one].seconds,
           times["2 devices x 128, variables on the host"].seconds, strict=True)]  # fmt: skip
    ratios.append(results.Ratio.of("2 devices x 128, speed-up", [2 * r for r in two]))
    del steps

    small = models.seed_004(width=WIDTH)
    shared = in_turn({n: Step(plan, small, scaling.Layout(n, SHARED // n)) for n in (1, 2, 4, 8)})
    for n, timed in shared.items():
        theirs = scaling.SEED_004[0].seconds / scaling.SEED_004[(1, 2, 4, 8).index(n)].seconds
        gain = [a / b for a, b in zip(shared[1].seconds, timed.seconds, strict=True)]
        if n > 1:
            ratios.append(results.Ratio.of(f"seed 004, {n} devices, speed-up", gain))
        print(f"seed 004 on {n}: {1e3 * timed.median:.1f} ms; {median(gain):.2f} times, "
              f"there {theirs:.2f}")  # fmt: skip

    layouts = [scaling.Layout(n, b) for n in range(1, min(2, plan.cores) + 1) for b in OWN]
    taken = in_turn({layout: Step(plan, network, layout) for layout in layouts})
    own = [scaling.Measurement(layout, timed.median) for layout, timed in taken.items()]
    terms = ("arithmetic", "fixed", "moving")[: layouts[-1].devices + 1]
    work = scaling.Workload.of(network)
    print(scaling.fit(work, own, terms))
    off = np.abs(scaling.errors(scaling.holdout(work, own, terms=terms)))
    low, middle, high = (round(float(q), 4) for q in np.quantile(off, [0.25, 0.5, 0.75]))
    ratios.append(results.Ratio("rows left out, error", middle, 0.15, False, low, high))
    print(*ratios, sep="\n")
    numbers = {
        "width": WIDTH,
        "rounds": ROUNDS,
        "seed_001": rows,
        "told_apart": told,
        "seed_004_ms": {str(n): round(1e3 * timed.median, 2) for n, timed in shared.items()},
        "left_out_error": {repr(m.layout): round(float(e), 4)
                           for m, e in zip(own, off, strict=True)},
    }  # fmt: skip
    results.write("scaling", plan, numbers, ratios)


if __name__ == "__main__":
    main()
