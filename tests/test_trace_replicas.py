"""A step on several replicas of tf.distribute, traced and called.

In a child process with a time limit: a collective operation that one replica never reaches hangs.
"""

from __future__ import annotations

import json

import pytest

from conftest import run_python

CODE = """
import json, sys
import numpy as np
from mgpu_helpers import devices, trace, whatif
from mgpu_helpers.whatif.work import on_cpu_threads, threads_of
plan = devices.setup(3)
import keras
import tensorflow as tf

def by_hand(strategy):
    with strategy.scope():
        weight = tf.Variable(tf.ones([5, 4]), name="weight")

    def replica(x):
        found = tf.matmul(x, weight)
        gradient = tf.matmul(x, found, transpose_a=True)
        context = tf.distribute.get_replica_context()
        weight.assign_sub(0.1 * context.all_reduce("sum", gradient))
        return tf.reduce_sum(found), weight.read_value()

    step = tf.function(lambda x: strategy.run(replica, args=(x,)))
    x = np.random.default_rng(0).normal(size=[12, 5]).astype("f")
    whole = tf.data.Dataset.from_tensors(x)
    data = next(iter(strategy.experimental_distribute_dataset(whole)))
    got, traced = trace.function_step(step, data)
    same = [bool((copy.numpy() == 1).all()) for copy in weight.values]
    for ours, theirs in zip(got, step(data)):
        for a, b in zip(ours.values, theirs.values):
            same.append(bool(np.allclose(a, b.numpy(), rtol=1e-5)))
    return same, traced

def by_fit(strategy):
    with strategy.scope():
        model = keras.Sequential([
            keras.Input([28, 28, 2]), keras.layers.Conv2D(16, 3, name="conv"),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Flatten(), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    before = [v.numpy() for v in model.weights]
    x, y = np.ones([120, 28, 28, 2], "f"), np.ones([120, 2], "f")
    traced = trace.fit_step(model, (x, y))
    same = [bool((a == b.numpy()).all()) for a, b in zip(before, model.weights)]
    same.append(int(model.optimizer.iterations.numpy()) == 0)
    try:
        trace.fit_step(model, (x[:7], y[:7]))
    except ValueError as error:
        same.append("7 examples" in str(error))
    return same, traced, sum(v.numpy().nbytes for v in model.trainable_variables)

def about(traced):
    products = [op.device for op in traced.ops if "MatMul" in op.type]
    return dict(
        products={device: products.count(device) for device in traced.devices},
        given={d: [c.bytes for c in traced.collectives if c.device == d]
               for d in traced.devices},
        timed=all(c.length > 0 for c in traced.collectives),
        kinds=sorted({(op.type, c.by) for op in traced.ops for c in traced.collectives
                      if op.name == c.op}),
        between=[list(pair) + [n] for pair, n in traced.bytes_between().items()],
    )

def asked(traced):
    said, groups = whatif.explain(traced), {}
    for each in traced.collectives:
        groups.setdefault(each.group, []).append(each)
    changes = [whatif.faster(traced, "conv"), whatif.towers(traced, 1, batch=0.5),
               whatif.link(traced, 1e8)]
    return dict(
        meet=[sorted(each.device for each in members) for members in groups.values()],
        waits=[[each.waited for each in members] for members in groups.values()],
        lengths=[[each.length for each in members] for members in groups.values()],
        notes=said.notes, length=traced.length, replayed=whatif.replay(traced).a.median,
        accounts=[[a.device, a.worked, traced.busy(a.device), sum(w.seconds for w in a.waits)]
                  for a in said.accounts],
        after=[change.b.median for change in changes],
        least=sum(op.length for op in on_cpu_threads(traced)) / threads_of(traced))

found, strategy = {}, tf.distribute.MirroredStrategy(plan.devices)
same, traced = by_hand(strategy)
found["by hand"] = about(traced) | dict(same=same)
same, traced, weights = by_fit(strategy)
found["fit"] = about(traced) | asked(traced) | dict(same=same, weights=weights)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    printed = run_python(CODE, timeout=280, MGPU_MODE="cores", PYTHONWARNINGS="ignore")
    return json.loads(printed.stdout.splitlines()[-1])


GRADIENT = 5 * 4 * 4  # bytes
DEVICES = ["/CPU:1", "/CPU:2", "/CPU:3"]


def test_replicas_are_traced_as_they_run_and_what_they_give_is_no_copy(found):
    got = found["by hand"]
    assert all(got["same"]) and len(got["same"]) == 3 + 2 * 3
    assert got["products"] == {"/CPU:0": 0} | dict.fromkeys(DEVICES, 2)
    assert got["kinds"] == [["CollectiveReduceV2", "ring"]] and got["timed"]
    assert got["given"] == {"/CPU:0": []} | dict.fromkeys(DEVICES, [GRADIENT])
    for a, b, n in got["between"]:
        assert n < GRADIENT or "/CPU:0" in (a, b)  # the batch, the results


def test_a_step_of_fit_gives_every_gradient_once(found):
    got = found["fit"]
    assert all(got["same"]) and len(got["same"]) == 10  # weights, the optimizer, 7 are refused
    assert [got["given"][device].count(got["weights"]) for device in DEVICES] == [1] * 3


def test_what_replicas_waited_for_is_told_and_the_step_is_replayed(found):
    got = found["fit"]
    # One gradient; and three sums (values, squares, how many) forward, two of them backward.
    assert got["meet"] == [DEVICES] * (1 + 3 + 2)
    for waits, lengths in zip(got["waits"], got["lengths"], strict=True):
        assert min(waits) == 0 and all(0 <= w < n for w, n in zip(waits, lengths, strict=True))
    assert got["notes"] == []
    assert [device for device, *_ in got["accounts"]] == DEVICES
    for _, worked, busy, waited in got["accounts"]:
        assert worked == pytest.approx(busy, rel=1e-3, abs=1e-5)
        assert worked + waited == pytest.approx(got["length"])
    assert got["least"] <= got["replayed"] and min(got["after"]) > 0
