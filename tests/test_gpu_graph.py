"""The helpers meet graphs as TensorFlow's optimizer makes them for a GPU: steps of an H100."""

from __future__ import annotations

import re

import pytest

from gpu_graph import recorded
from mgpu_helpers import memory, pipeline, trace
from mgpu_helpers.pipeline.tasks import task_of
from mgpu_helpers.trace.layers import layer

IMAGES, LAYERS = 128, ["conv1", "pool", "conv2", "pool_1", "fc1", "output"]
# Numbers that go into each layer but the first, for an image.
INPUTS = [28 * 28 * 16, 14 * 14 * 16, 14 * 14 * 32, 7 * 7 * 32, 256]


@pytest.fixture(scope="module")
def step():
    """Read a step of two convolutions, two pools and two dense layers."""
    return trace.read(recorded("step"))


def test_a_transpose_called_after_a_gradient_does_not_begin_the_backward_pass(step):
    """What crosses is what the layer behind the cut takes."""
    (fused,) = [op.name for op in step.ops if op.type == "_FusedConv2D"]
    assert layer(fused) == "conv1"
    assert any(user == fused and maker.startswith("gradients/") for maker, user in step.edges)
    crossing = [cut.parts[0].crossing for cut in pipeline.cuts(step, LAYERS, 2)]
    assert crossing == [2 * 4 * IMAGES * numbers for numbers in INPUTS]


def test_what_the_optimizer_added_belongs_to_a_layer_and_is_no_gradient(step):
    added = [op.name for op in step.ops if op.name.endswith("-LayoutOptimizer")]
    assert {layer(name) for name in added} == {"conv1", "pool_1"}
    held = memory.by_use(step, "/GPU:0", weights=1000)
    assert held.total == 1000 + step.peak("/GPU:0")
    assert held.activations == pytest.approx(4 * IMAGES * sum(INPUTS[:3]), rel=0.01)


def test_a_shared_transpose_is_in_no_task_of_a_pipeline():
    step = trace.read(recorded("split"))
    forward = {op.name for op in step.ops if re.match(r"[^/]*/stage_0/F0/", op.name)}
    shared = {maker for maker, user in step.edges if user in forward and "B0/" in maker}
    assert shared and not any(task_of(op) for op in step.ops if op.name in shared)
    assert len(pipeline.spans(step)) == 4
