"""The helpers meet the graph of a GPU, as TensorFlow's optimizer makes it: see gpu_graph.py."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gpu_graph
from mgpu_helpers import fit, memory, pipeline, trace
from mgpu_helpers.trace.layers import layer

KINDS = {"Conv2D", "_FusedConv2D"}


@pytest.fixture(scope="module")
def model(tf, keras, plan):
    """Build a small residual network of convolutions, a join, a pool and a dense layer."""
    layers = keras.layers
    keras.backend.clear_session()
    with tf.device(plan.devices[0]):
        given = keras.Input((16, 16, 3))
        x = layers.Conv2D(8, 3, padding="same", activation="relu", name="first")(given)
        x = layers.MaxPooling2D(name="pool")(x)
        y = layers.Conv2D(8, 3, padding="same", name="inner")(x)
        y = layers.ReLU(name="relu")(layers.BatchNormalization(name="norm")(y))
        x = layers.Conv2D(12, 3, padding="same", name="second")(layers.Add(name="join")([x, y]))
        model = keras.Model(given, layers.Dense(5, name="last")(layers.Flatten(name="flat")(x)))
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture(scope="module")
def data():
    return np.ones([8, 16, 16, 3], "float32"), np.zeros([8], "int64")


@pytest.fixture(scope="module")
def step(model, data):
    """Trace a training step as a GPU would run it."""
    graph = gpu_graph.optimized(lambda x, y: model.train_step((x, y)), *data)
    return trace.read(gpu_graph.record(graph))


def test_a_transpose_called_after_a_gradient_does_not_begin_the_backward_pass(step, model, plan):
    """What crosses is what the layer behind the cut takes, by the shapes that Keras knows."""
    (first,) = [op.name for op in step.ops if op.type in KINDS and "/first_1/" in op.name]
    makers = [maker for maker, user in step.edges if user == first]
    assert any(maker.startswith("gradient_tape/") for maker in makers)  # else nothing is shown here
    layers = pipeline.places(model)
    inputs = {name: model.get_layer(name).input for name in list(layers)[1:]}
    wanted = {name: 2 * 4 * 8 * np.prod(x.shape[1:]) for name, x in inputs.items()}
    found = {cut.starts[0]: cut.parts[0].crossing for cut in pipeline.cuts(step, layers, 2)}
    assert found == wanted and {"pool", "second", "last"} <= set(found)
    best = pipeline.best_cut(step, plan.devices, layers, by="bytes")
    assert best.parts[0].crossing == min(wanted.values())
    laid = fit.use(model, plan, stages=best.starts)  # which takes it
    assert fit.layout(laid).stages == best.starts
    fit.alone(model)


def test_what_the_optimizer_added_belongs_to_a_layer_and_is_no_gradient(step, model):
    known = [each.name for each in model.layers]
    added = [op for op in step.ops if op.name.endswith("-LayoutOptimizer") and op.bytes > 1000]
    assert added
    for op in added:
        after = op.name.partition("-")[0]  # the operation that it was made for
        assert layer(op.name) == layer(op.name, known) == layer(after), op.name
    assert {layer(op.name) for op in added} & set(known)
    weights = 4 * model.count_params()
    held = memory.by_use(step, "/GPU:0", weights=weights)
    assert held.total == weights + step.peak("/GPU:0")
    largest = max(op.bytes for op in step.ops if op.type in KINDS)
    assert held.activations > 2 * largest  # of both passes: every convolution's input waits


def test_a_fused_operation_keeps_its_layer(model, data):
    graph = gpu_graph.optimized(lambda x: model(x, training=False), data[0])
    ops = trace.read(gpu_graph.record(graph)).ops
    fused = [layer(op.name) for op in ops if op.type.startswith("_Fused")]
    convolutions = {layer(op.name) for op in ops if op.type in KINDS}
    assert fused and convolutions == {"first", "inner", "second"}, fused


def test_a_shared_transpose_does_not_begin_a_task_of_a_pipeline(model, data, plan):
    with pytest.warns(UserWarning, match="norm in"):
        fit.use(model, plan, stages=["second"], pieces=2, schedule="all forward first")
    graph = gpu_graph.optimized(lambda x, y: model.train_step((x, y)), *data)
    fit.alone(model)
    step = trace.read(gpu_graph.record(graph))
    forward = {op.name for op in step.ops if re.match(r"[^/]*/stage_0/F0/", op.name)}
    shared = [maker for maker, user in step.edges if user in forward and "B0/" in maker]
    assert shared  # else nothing is shown here
    spans = {(span.stage, span.task): span for span in pipeline.spans(step)}
    assert len(spans) == 8
    for piece in "01":
        tasks = [(0, f"F{piece}"), (1, f"F{piece}"), (1, f"B{piece}"), (0, f"B{piece}")]
        starts = [spans[task].start for task in tasks]
        assert starts == sorted(starts)
