"""The layer of each operation, by real traces of Keras models and of functions without Keras."""

from __future__ import annotations

import contextlib
import inspect
from collections import defaultdict

import numpy as np
import pytest

from mgpu_helpers import trace
from mgpu_helpers.trace.layers import layer

OURS = {"loss", "optimizer", "other", "variables"}


@pytest.fixture(scope="module")
def model(tf, keras, plan):
    """Build a model with names that Keras gives, and names of ours that look like Keras's.

    `add` is a layer, and the backward pass of a BatchNormalization has scopes `add_1`. `dense_1`
    is what Keras makes of a layer `dense`, and a layer of its own.
    """
    from keras import layers

    keras.backend.clear_session()
    with tf.device(plan.devices[0]):
        given = keras.Input((8, 8, 2))
        x = layers.Conv2D(4, 3, padding="same")(given)
        y = layers.Conv2D(4, 3, padding="same")(layers.ReLU()(layers.BatchNormalization()(x)))
        x = layers.Add()([x, layers.BatchNormalization()(y)])
        x = layers.Dense(6, activation="relu")(layers.Flatten()(x))
        parts = layers.Dense(5, name="c1"), layers.Dense(6, name="c2")
        inner = keras.Sequential([keras.Input((6,)), *parts], name="inner")
        x = layers.Add()([inner(x), inner(layers.Dense(6)(x))])
        model = keras.Model(given, layers.Dense(3, name="c1")(x), name="dense")
        model.compile("sgd", "mse", metrics=["mae"])
        model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture(scope="module")
def step(model):
    x, y = (np.random.default_rng(0).normal(size=size) for size in ((4, 8, 8, 2), (4, 3)))
    return trace.function_step(model.train_on_batch, x.astype("f"), y.astype("f"))[1]


def readers(step):
    """Say which operations of a step read which variable, by the path that Keras gave it."""
    users = defaultdict(list)
    for maker, user in step.edges:
        users[maker].append(user)
    kinds = {op.name: op.type for op in step.ops}
    for op in step.ops:
        if op.type == "VarHandleOp":
            ends = users[op.name] + [end for via in users[op.name] for end in users[via]]
            path = op.name.split("/")[1:]
            yield from ((path, end) for end in ends if kinds.get(end) == "ReadVariableOp")


def test_what_reads_a_weight_belongs_to_the_layer_that_keras_says_has_it(model, step):
    known, seen = [each.name for each in model.layers], set()
    for path, reader in readers(step):
        if path[0] in known:  # of a layer: not of the optimizer, the loss, a metric
            assert layer(reader, known) == path[0], reader
            seen.add(path[0])
    assert seen == {"conv2d", "conv2d_1", "batch_normalization", "batch_normalization_1", "dense",
                    "dense_1", "inner", "c1"}  # fmt: skip
    found = {op.name: layer(op.name) for op in step.ops}  # without the layers' names
    assert found == {name: layer(name, known) for name in found}
    idle = {name for name in known if name.startswith("input_layer")}
    assert set(known) - set(found.values()) <= idle | {"flatten"}


def test_the_backward_pass_belongs_to_the_layer_and_the_rest_has_names_of_its_own(model, step):
    kinds = defaultdict(set)
    for op in step.ops:
        kinds[layer(op.name)].add(op.type.removesuffix("WithBias"))
    assert kinds.keys() - {each.name for each in model.layers} == OURS
    for each in ("conv2d", "conv2d_1"):
        assert "Conv2DBackpropFilter" in kinds[each] and len(kinds[each]) > 2
    assert "Conv2DBackpropInput" in kinds["conv2d_1"]  # nobody asks for the images' gradient
    assert {"Mul", "AssignSubVariableOp"} <= kinds["optimizer"]
    assert "SquaredDifference" in kinds["batch_normalization"]
    assert not {"MatMul", "Conv2D"} & (kinds["loss"] | kinds["optimizer"] | kinds["other"])


@pytest.mark.parametrize("name, wanted", [
    ("gradients/tower_1/conv1/Conv2D_grad/Conv2DBackpropFilter", "conv1"),
    ("gradients/stage_1/F3_1/fc1/MatMul_grad/MatMul", "fc1"),
    ("replica_1/net_1/add_1_2/Add", "add_1"),
    ("train/update_conv1/w/ResourceApplyAdam", "optimizer"),
    ("Func/StatefulPartitionedCall/input/_7", "other"),
    ("StatefulPartitionedCall/Add_2/ReadVariableOp", "other"),
    ("x", "other"),
    ("outside_4/c1/kernel", "variables"),
    ("while/body/_3/net_1/lstm_1_2/MatMul", "lstm_1"),
    ("ConstantFolding/gradient_tape/net_1/bn_1/moments/truediv_recip", "bn"),
])  # fmt: skip
def test_names_of_other_graphs(name, wanted):
    assert layer(name) == wanted


def test_the_optimizers_of_keras_are_no_layers(keras):
    found = []
    for kind in filter(inspect.isclass, vars(keras.optimizers).values()):
        with contextlib.suppress(TypeError):  # what wraps others wants them
            found.append(layer(f"{kind().name}/Mul"))
    assert len(found) > 10 and {*found} == {"optimizer"}
