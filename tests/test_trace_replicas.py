"""A step on several replicas of tf.distribute, traced and called.

In a child process with a time limit: a collective operation that one replica never reaches hangs.
"""

from __future__ import annotations

from conftest import run_python

CODE = """
import numpy as np
from collections import Counter, defaultdict
from pytest import approx, raises
from mgpu_helpers import devices, trace, whatif
from mgpu_helpers.whatif.work import on_cpu_threads, threads_of
plan = devices.setup(3)
import keras
import tensorflow as tf
strategy = tf.distribute.MirroredStrategy(plan.devices)

# By hand: what a traced call gives is what a call gives, and no variable has changed.
with strategy.scope():
    weight = tf.Variable(tf.ones([5, 4]), name="weight")

def replica(x):
    found = tf.matmul(x, weight)
    gradient = tf.matmul(x, found, transpose_a=True)
    weight.assign_sub(0.1 * tf.distribute.get_replica_context().all_reduce("sum", gradient))
    return tf.reduce_sum(found), weight.read_value()

step = tf.function(lambda x: strategy.run(replica, args=(x,)))
whole = tf.data.Dataset.from_tensors(np.random.default_rng(0).normal(size=[12, 5]).astype("f"))
data = next(iter(strategy.experimental_distribute_dataset(whole)))
got, traced = trace.function_step(step, data)
assert all((copy.numpy() == 1).all() for copy in weight.values)
for ours, theirs in zip(got, step(data)):
    for a, b in zip(ours.values, theirs.values):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-5)
products = Counter(op.device for op in traced.ops if "MatMul" in op.type)
assert products == dict.fromkeys(plan.devices, 2)
gradient = 5 * 4 * 4
assert {c.device: (c.bytes, c.by) for c in traced.collectives} == dict.fromkeys(
    plan.devices, (gradient, "ring"))
assert all(c.length > 0 for c in traced.collectives) and len(traced.collectives) == 3
for pair, size in traced.bytes_between().items():  # what replicas give is no copy
    assert size < gradient or "/CPU:0" in pair

# A step of fit.
with strategy.scope():
    model = keras.Sequential([
        keras.Input([28, 28, 2]), keras.layers.Conv2D(16, 3, name="conv"),
        keras.layers.BatchNormalization(synchronized=True),
        keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
before = [v.numpy() for v in model.weights]
x, y = np.ones([120, 28, 28, 2], "f"), np.ones([120, 2], "f")
traced = trace.fit_step(model, (x, y))
np.testing.assert_equal([v.numpy() for v in model.weights], before)
assert model.optimizer.iterations.numpy() == 0
with raises(ValueError, match="7 examples"):
    trace.fit_step(model, (x[:7], y[:7]))
weights = sum(v.numpy().nbytes for v in model.trainable_variables)
groups = defaultdict(list)
for each in traced.collectives:
    groups[each.group].append(each)
# One gradient; and three sums (values, squares, how many) forward, two of them backward.
assert len(groups) == 1 + 3 + 2
for members in groups.values():
    assert sorted(each.device for each in members) == [*plan.devices]
    assert min(each.waited for each in members) == 0
    assert all(0 <= each.waited < each.length for each in members)
assert sum(each.bytes == weights for each in traced.collectives) == 3

# What replicas waited for is told, and the step is replayed.
said = whatif.explain(traced)
assert said.notes == () and [each.device for each in said.accounts] == [*plan.devices]
for each in said.accounts:
    assert each.worked == approx(traced.busy(each.device), rel=1e-3, abs=1e-5)
    assert each.worked + sum(wait.seconds for wait in each.waits) == approx(traced.length)
least = sum(op.length for op in on_cpu_threads(traced)) / threads_of(traced)
assert least <= whatif.replay(traced).a.median
for change in (whatif.faster(traced, "conv"), whatif.towers(traced, 1, batch=0.5),
               whatif.link(traced, 1e8)):
    assert change.b.median > 0
"""


def test_replicas_are_traced_as_they_run_and_their_step_is_replayed():
    run_python(CODE, timeout=280, MGPU_MODE="cores", PYTHONWARNINGS="ignore")
