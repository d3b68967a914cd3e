"""Two rules of a GPU machine in cores mode, by which `make browser` runs the lessons.

TensorFlow puts what nobody placed on the first device, and what is for a GPU that is not there.
Without a GPU that goes to the host, so a lesson or a helper that forgets to place something gives
other places, bytes and outputs on a GPU machine. And Keras compiles a step with XLA wherever it
finds a GPU, unless it is told not to. XLA wants all variables of a step on the device that it runs
on.
"""

from __future__ import annotations

import functools
import re
import threading
import warnings


def install() -> None:
    """Let `devices.setup` switch both rules on as soon as it has made a plan."""
    from mgpu_helpers import devices

    setup = devices.setup

    @functools.wraps(setup)
    def rehearsed(n: int = 2, **options: bool) -> devices.Plan:
        known, plan = devices.current(), setup(n, **options)
        if plan is not known:
            _unplaced_goes_to(plan.devices[0])
            _keras_compiles_with_xla()
        return plan

    devices.setup = rehearsed


def _unplaced_goes_to(first: str) -> None:
    import tensorflow as tf
    from tensorflow.python.framework import func_graph, ops

    from mgpu_helpers import devices

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
    device, last = tf.device, devices.current().devices[-1]

    def placed(where: object) -> object:
        """Let a GPU that is not there be the first one, as soft placement does outside Sessions."""
        number = re.fullmatch(r"/?(?:device:)?gpu:(\d+)", str(where), re.IGNORECASE)
        beyond = number and int(number[1]) >= int(last.rpartition(":")[2])
        soft = False
        if ops.executing_eagerly_outside_functions():
            with ops.init_scope():  # in a function's graph it is said to be off until it is set
                soft = tf.config.get_soft_device_placement()
        return device(first if beyond and soft else where)

    tf.device = placed
    tf.device(first).__enter__()


def _keras_compiles_with_xla() -> None:
    from keras import Model
    from keras.src.trainers.trainer import Trainer, model_supports_jit

    assert Trainer._resolve_auto_jit_compile is Model._resolve_auto_jit_compile

    def found_a_gpu(self: Model) -> bool:
        return not self._distribute_strategy and model_supports_jit(self)

    Trainer._resolve_auto_jit_compile = found_a_gpu
    # `fit_step` says that it leaves XLA out, which is so on every GPU machine.
    warnings.filterwarnings("ignore", "fit compiles the step with XLA")
