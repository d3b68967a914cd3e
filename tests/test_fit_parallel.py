"""A model whose calls are shared out: where it works, what crosses, and whom it leaves alone."""

from __future__ import annotations

import numpy as np
import pytest

import fit_models
from mgpu_helpers import fit, trace
from mgpu_helpers.graph.step import training_step


def test_a_call_and_a_tape_outside_of_fit_give_the_same(keras, tf, plan, double):
    model, slopes = fit_models.dense(), []
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(fit_models.X[:7], training=True) ** 2)
        slopes.append([tf.convert_to_tensor(g) for g in tape.gradient(loss, model.weights)])
        if "call" not in vars(model):
            fit.parallel(model, plan.devices)
    for a, b in zip(*slopes, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)

    traced = tf.function(lambda x: model(x, training=True))
    with tf.GradientTape(), pytest.raises(RuntimeError, match="GradientTape"):
        traced(tf.constant(fit_models.X[:8]))


def test_each_device_works_and_little_crosses(keras, tf, plan):
    """A model on the first device: weights to the others, and their gradients back."""
    with tf.device(plan.devices[0]):
        model = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(500), keras.layers.Dense(3)]
        )
        model.compile(keras.optimizers.Adam(global_clipnorm=1.0), "mse")
    size = sum(4 * np.prod(v.shape) for v in model.trainable_variables)
    fit.parallel(model, plan.devices)
    step = trace.fit_step(model, (np.ones((4, 6), "f"), np.ones((4, 3), "f")))
    for i, device in enumerate(plan.devices):
        products = [op for op in step.ops if "MatMul" in op.type and f"tower_{i}/" in op.name]
        assert len(products) == 5 and {op.device for op in products} == {device}
    assert sum(step.bytes_between().values()) < 2.4 * size


def test_a_model_that_is_not_shared_out_is_trained_as_by_keras_alone(keras, plan):
    """Keras's optimizer is mended for weights of parallel models; others have its one barrier."""
    other, shared = (fit_models.dense() for _ in range(2))
    fit.parallel(shared, plan.devices)
    barriers = []
    for make in (lambda: other, lambda: shared, lambda: fit.alone(shared)):
        ops = training_step(make(), 8).concrete.graph.get_operations()
        barriers.append([op.name for op in ops if op.type == "IdentityN" and "adam" in op.name])
    assert [len(each) for each in barriers] == [1, 0, 1]


def test_weights_that_build_leaves_to_the_first_call_are_made(keras, plan):

    class Two(keras.Model):
        def __init__(self, *built):
            super().__init__()
            self.parts, self.first = [keras.layers.Dense(4), keras.layers.Dense(4)], built

        def build(self, shape):
            for i in self.first:
                self.parts[i].build(shape)

        def call(self, x):
            return self.parts[1](self.parts[0](x))

    x, trained = np.ones((6, 4)), []
    for built in ([], [0], [0, 1]):
        keras.utils.set_random_seed(0)
        model = Two(*built)
        model.build((None, 4))
        model.compile("sgd", "mse")
        fit.parallel(model, plan.devices).fit(x, x, verbose=0)
        trained.append(model.get_weights())
    assert [len(weights) for weights in trained] == [4, 4, 4]
    model = Two()
    model.build([(None, 4), (None, 4)])  # which its call does not take
    with pytest.raises(ValueError, match="call it once on a batch"):
        fit.parallel(model, plan.devices)
