"""The placement of a block: classic and modern code agree, and nothing else is lost."""

from __future__ import annotations

import os
import sys

import pytest

from mgpu_helpers import trace

ROWS = [
    ("host/total", "AddV2", "/CPU:0"),
    ("a", "Const", "/CPU:1"),
    ("product", "MatMul", "/CPU:1"),
    ("twice", "AddV2", "/CPU:2"),
]


def program(plan):
    """Build the same program in a graph, in a function, and as it runs; all of it can be folded."""
    import tensorflow as tf

    with tf.device(plan.devices[0]):
        a = tf.constant([[1.0, 2.0], [3.0, 4.0]], name="a")
        product = tf.matmul(a, a, name="product")
    with tf.device(plan.devices[1]):
        twice = tf.add(product, product, name="twice")
    with tf.device(plan.host), tf.name_scope("host"):
        return tf.add(product, twice, name="total")


def classic(plan):
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        total = program(plan)
    config = plan.session_config(log_placement=True)
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        return session.run(total)


def as_tuples(found):
    return [(row.name, row.type, row.device) for row in found.rows]


def test_classic_and_modern_agree(tf, plan):
    modern = tf.function(lambda: program(plan))
    before = modern()  # what ran before the block is reported too
    for _ in range(2):
        with trace.placement() as one:
            value = classic(plan)
        with trace.placement() as other:
            again = modern()
        assert (value == before.numpy()).all() and (again == before).numpy().all()
        assert as_tuples(one) == ROWS
        assert [row for row in as_tuples(other) if row[1] != "Identity"] == ROWS


def test_eager_operations_are_reported_by_their_type(tf, plan):
    with trace.placement():
        tf.sqrt(2.0)
    tf.exp(2.0)
    with trace.placement() as found:
        program(plan)
    assert as_tuples(found) == [  # and nothing of what ran outside the block
        ("AddV2", "AddV2", "/CPU:0"), ("MatMul", "MatMul", "/CPU:1"), ("AddV2", "AddV2", "/CPU:2"),
    ]  # fmt: skip


def test_what_ran_elsewhere_or_in_parts_is_reported_where_and_as_what_it_was_written(tf):
    """TensorFlow places softly, and oneDNN puts operations of its own in place of others."""
    image, kernel = tf.ones([1, 8, 8, 1]), tf.ones([3, 3, 1, 2])

    @tf.function
    def both(x):
        with tf.device("/GPU:7"):
            x = tf.add(x, 2.0, name="sum")
        return tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), [1.0, 2.0])

    with trace.placement() as found:
        both(image)
        tf.nn.conv2d(image, kernel, 1, "SAME")
    assert {row.device for row in found.rows if row.name == "sum"} == {"/CPU:0"}
    assert {"Conv2D", "BiasAdd"} <= {row.type for row in found.rows}
    assert not any("Mkl" in row.name + row.type for row in found.rows)


def test_what_a_block_prints_and_raises_comes_through_and_all_is_put_back(tf, plan, capfd):
    line = "x: (MatMul): /job:localhost/replica:0/task:0/device:CPU:1"
    before, stdout = os.fstat(1), sys.stdout
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        with pytest.raises(ZeroDivisionError), trace.placement() as found:
            print("from Python")
            os.write(1, b"from C\n\nand more\n")
            os.write(1, b"Device mapping:\n/job:a/GPU:0 -> device: 0, name: b\n\n")  # of GPUs
            classic(plan)
            print(line)  # as TensorFlow does it in a notebook
            print("at the end, without a line break", end="")
            raise ZeroDivisionError
        assert tf.config.optimizer.get_experimental_options()["disable_meta_optimizer"]
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    assert sys.stdout is stdout and os.path.samestat(os.fstat(1), before)
    printed = capfd.readouterr().out
    for text in ("from Python\n", "from C\n\nand more\n", "at the end, without a line break"):
        assert text in printed
    assert printed.endswith("and more\n")  # and not with the empty line after the GPUs
    assert "/job:" not in printed and len(found.raw) == 5 and line in found.raw
    with trace.placement() as after:
        classic(plan)
    assert as_tuples(after) == ROWS
    lines = repr(after).splitlines()
    assert lines[:2] == ["operation   type    device", "host/total  AddV2   /CPU:0"]
    assert not tf.config.optimizer.get_experimental_options()["disable_meta_optimizer"]


