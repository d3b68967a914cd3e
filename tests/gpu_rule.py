"""TensorFlow's rule of a GPU machine in cores mode: what nobody placed goes to the first device.

Without a GPU it goes to the host, so a lesson or a helper that forgets to place something gives
other places, bytes and outputs on a GPU machine. `make rehearse` runs the lessons by this rule.
"""

from __future__ import annotations

import functools
import threading


def install() -> None:
    """Let `devices.setup` switch the rule on as soon as it has made a plan."""
    from mgpu_helpers import devices

    setup = devices.setup

    @functools.wraps(setup)
    def rehearsed(n: int = 2) -> devices.Plan:
        known, plan = devices.current(), setup(n)
        if plan is not known:
            _unplaced_goes_to(plan.devices[0])
        return plan

    devices.setup = rehearsed


def _unplaced_goes_to(first: str) -> None:
    import tensorflow as tf
    from tensorflow.python.framework import func_graph, ops

    begin, run = ops.Graph.__init__, threading.Thread.run

    def graph_begins_on_first(self: ops.Graph) -> None:
        begin(self)
        # What a function leaves open follows the device around its call, by this rule as well.
        if not isinstance(self, func_graph.FuncGraph):
            self._add_device_to_stack(first)

    def thread_begins_on_first(self: threading.Thread) -> None:
        with tf.device(first):
            run(self)

    ops.Graph.__init__ = graph_begins_on_first
    threading.Thread.run = thread_begins_on_first
    tf.device(first).__enter__()
