"""What a lesson builds and what the package holds give the same on the same input."""

from __future__ import annotations

import ast
import re
from collections import namedtuple

import numpy as np
import pytest

import lessons
from mgpu_helpers import towers


@pytest.fixture(scope="module")
def taught(tf, plan):
    """Give a function by its name: the last of this name that a lesson builds.

    What it needs besides, that lesson builds before it.
    """

    series = lessons.read()

    def find(name, *needed):
        built = [
            {
                wanted: cell.source
                for cell in lesson.cells
                if cell.cell_type == "code"
                if not {"exercise", "solution"} & set(lessons.tags(cell))
                for wanted in (*needed, name)
                if re.search(rf"^def {wanted}\(", cell.source, re.MULTILINE)
            }
            for lesson in series
        ]
        built = [cells for cells in built if name in cells]
        assert built, f"no lesson builds {name}: give its test the function's new name."
        names = {"plan": plan, "np": np, "tf": tf, "tf1": tf.compat.v1,
                 "towers": towers, "Kept": namedtuple("Kept", "x made")}  # fmt: skip
        for wanted in (*needed, name):
            for each in ast.parse(built[-1][wanted]).body:  # what else the cell defines, too
                if isinstance(each, ast.FunctionDef):
                    exec(ast.unparse(each), names)
        return names[name]

    return find


def draw(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def test_make_parallel(tf, plan, taught):
    v1, found = tf.compat.v1, []

    def model(x, y):
        w = v1.get_variable("w", [3, 1], initializer=v1.ones_initializer())
        return tf.square(tf.matmul(x, w) - y)

    def reusing(x, y):  # as the lesson does it
        with v1.variable_scope(v1.get_variable_scope(), reuse=v1.AUTO_REUSE):
            return model(x, y)

    def by_hand(_, devices):
        return taught("make_parallel", "on_each")(reusing, devices)

    for make_parallel in (by_hand, towers.make_parallel):
        with tf.Graph().as_default() as graph:
            x, y = tf.constant(draw(6, 3)), tf.constant(draw(6, 1))
            loss = make_parallel(model, plan.devices)(x, y)
            weights = v1.trainable_variables()
            slopes = v1.gradients(loss, weights, colocate_gradients_with_ops=True)
            with v1.Session(config=plan.session_config()) as session:
                session.run(v1.global_variables_initializer())
                values = session.run([loss, *slopes])
        where = sorted(("gradients" in op.name, op.device)
                       for op in graph.get_operations() if op.type == "MatMul")  # fmt: skip
        found.append((values, [w.name for w in weights], where))
    (ours, *rest), (theirs, *others) = found
    assert rest == others and len({device for _, device in rest[1]}) == 2
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_average(tf, taught):
    each = [[tf.constant(draw(3, 4)), tf.constant(10.0 * i)] for i in range(3)]
    for column, other in zip(zip(*each, strict=True), towers.average(each), strict=True):
        np.testing.assert_allclose(taught("mean")(column), other, rtol=1e-6)
