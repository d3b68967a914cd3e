"""Two models trained at once against the loop that trains one after the other (lesson 18).

python benchmarks/ensemble.py    writes results/ensemble.json
"""

from __future__ import annotations

import sys
import time
from statistics import median

import _cards as results
import _workers
from _rounds import enough
from mgpu_helpers import devices, ensemble
from mgpu_helpers.lessons import digits, networks

HIDDEN, WIDTH, BATCH, STEPS, TARGET = (2400, 4800), 0.25, 128, 6, 0.9


def build(tf1, scopes: dict[str, int], places: tuple[str, ...]):
    """Build one graph with a network in each scope, and an operation that steps all of them."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        for (scope, hidden), place in zip(scopes.items(), places, strict=False):
            with tf.device(place), tf1.variable_scope(scope):
                network = networks.jang(hidden=hidden, width=WIDTH)
                x = tf1.placeholder(tf.float32, [None, 28, 28, 1], name="input")
                y = tf1.placeholder(tf.int64, [None], name="label")
                scores = networks.logits(network, networks.classic(network, seed=hidden), x)
                loss = tf.identity(networks.loss(y, scores), name="cross_entropy")
                tf1.train.AdamOptimizer(1e-3).minimize(loss, name="train_step")
                tf.nn.softmax(scores, name="probabilities")
        tf1.global_variables_initializer()
    return graph


def start(plan: devices.Plan, scopes: dict[str, int], places: tuple[str, ...]):
    import tensorflow.compat.v1 as tf1

    graph = build(tf1, scopes, places)
    config = plan.session_config(devices=len(scopes), soft_placement=True)
    session = tf1.Session(graph=graph, config=config)
    session.run("init")
    return session


def member(plan: devices.Plan, scope: str, hidden: int, place: str) -> ensemble.Member:
    """Make a member of a session of its own, whose graph has the network in this scope."""
    session = start(plan, {scope: hidden}, (place,))
    fetches = [f"{scope}/cross_entropy:0", f"{scope}/train_step"]

    def step(x, y) -> float:
        return session.run(fetches, {f"{scope}/input:0": x, f"{scope}/label:0": y})

    return ensemble.Member(scope, step, None)


def seconds(work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def worker(hidden: int) -> None:
    """Train one model each time a line comes in; answer with the seconds."""
    plan = devices.setup(1, exact=True)
    own = member(plan, "g", hidden, plan.devices[0])
    batch = digits.load(BATCH)

    def work() -> None:
        for _ in range(STEPS):
            own.step(*batch)

    work()
    _workers.serve(lambda: seconds(work))


def main() -> None:
    plan = devices.setup(2, exact=True)
    print(plan)
    workers = [_workers.start(__file__, hidden) for hidden in HIDDEN]
    scopes = {f"g{i}": hidden for i, hidden in enumerate(HIDDEN, 1)}
    members = [
        member(plan, scope, hidden, place)
        for (scope, hidden), place in zip(scopes.items(), plan.devices, strict=True)
    ]
    both = start(plan, scopes, plan.devices)
    batch = digits.load(BATCH)
    feed = {f"{s}/{n}:0": part for s in scopes for n, part in zip(("input", "label"), batch)}  # noqa: B905
    fetches = [f"{scope}/train_step" for scope in scopes]
    batches = [batch] * STEPS
    works = {
        "one after the other": lambda: [ensemble.train([each], batches) for each in members],
        "a thread for each": lambda: ensemble.train(members, batches),
        "one graph with both": lambda: [both.run(fetches, feed) for _ in range(STEPS)],
    }
    taken: dict[str, list[float]] = {name: [] for name in (*works, "a process for each")}
    ceiling = []

    def ratios() -> list[list[float]]:
        first, *others = taken.values()
        return [ceiling, *([a / b for a, b in zip(first, each, strict=True)] for each in others)]

    for round_ in enough(ratios, warmup=2):
        times = {name: seconds(work) for name, work in works.items()}
        times["a process for each"] = _workers.together(workers)
        alone = sum(_workers.together([each]) for each in workers)
        if round_ >= 0:
            ceiling.append(alone / times["a process for each"])
            for name, value in times.items():
                taken[name].append(value)
    _workers.stop(workers)
    first = taken.pop("one after the other")

    def faster(times: list[float]) -> list[float]:
        return [a / b for a, b in zip(first, times, strict=True)]

    ways = {name: results.Ratio.of(f"{name}, speed-up", faster(taken[name])) for name in taken}
    threads = faster(taken["a thread for each"])
    of_most = [a / b for a, b in zip(threads, ceiling, strict=True)]
    share = results.Ratio.of("threads, share of processes", of_most, TARGET)
    print(f"one after the other: {median(first) / STEPS * 1e3:.1f} ms a step; {len(first)} rounds")
    print(*ways.values(), share, sep="\n")
    numbers = {"target": TARGET, "rounds": len(first), "ceiling": round(median(ceiling), 3)}
    numbers["one_after_the_other"] = 1.0
    numbers |= {name.replace(" ", "_"): ratio.value for name, ratio in ways.items()}
    numbers["share_of_ceiling"] = share.value
    results.write("ensemble", plan, numbers, [*ways.values(), share])


if __name__ == "__main__":
    worker(int(sys.argv[1])) if sys.argv[1:] else main()
