"""Trace one step of what a Keras model's fit runs."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, cast

from mgpu_helpers._formatting import error_line
from mgpu_helpers._given import first_batch
from mgpu_helpers._later import keras, tf
from mgpu_helpers._models import ready
from mgpu_helpers._names import of_keras
from mgpu_helpers.trace.function import function_step
from mgpu_helpers.trace.step import Trace


def fit_step(model: Any, data: Any) -> Trace:
    """Trace one step of `model.fit(data)`, on the first batch; the model stays as it was.

    data is what fit takes: a tf.data.Dataset, a keras.utils.PyDataset, an iterable of batches; or a
    tuple, which is one batch (x,), (x, y) or (x, y, sample_weight) itself, of arrays or tensors. A
    generator is left without its first batch. What fit would build first (layers, the optimizer's
    variables) is built. A model that `fit.use` has laid out is traced so: with all rows, stages and
    pieces of the batch, each on its device.

    The step is traced alone, as operations: what fit does beyond that is warned of, which is to
    compile it with XLA, to run it eagerly, or several steps in one call.

    >>> import keras
    >>> model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    >>> model.compile("sgd", "mse")
    >>> step = fit_step(model, (np.ones([4, 3], "f"), np.ones([4, 2], "f")))
    >>> [op.bytes for op in step.ops if "MatMul" in op.type]  # forward, and of the weights
    [32, 24]
    """
    ready(model, built=False, compiled=True, single=False)
    batch, strategy = first_batch(data, model), model.distribute_strategy
    shapes = [str(tuple(each.shape)) for each in tf.nest.flatten(batch) if hasattr(each, "shape")]
    if (n := strategy.num_replicas_in_sync) > 1:  # each replica gets its share, as from fit
        size = len(tf.nest.flatten(batch)[0])
        cut_evenly = not hasattr(strategy, "of_fit")  # as that of mgpu_helpers.fit need not be
        if size % n and cut_evenly:  # Keras adds up the first shares of all to find their shape
            raise ValueError(
                f"the first batch has {size} examples, of which {n} replicas cannot get the same "
                f"number, and fit cannot begin so: give it a multiple of {n}."
            )
        whole = tf.data.Dataset.from_tensors(batch)
        shared = strategy.experimental_distribute_dataset(whole)
        if getattr(model, "history", None) is None:  # never fitted: a replica makes no variables
            model.fit(whole, epochs=0, verbose=0, shuffle=False)
        batch = next(iter(shared))
    else:
        with strategy.scope():
            build(model, batch)
    _warn_of_more(model)

    @tf.autograph.experimental.do_not_convert
    def step(batch: Any) -> Any:
        try:
            return strategy.run(model.train_step, args=(batch,))
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise ValueError(
                f"a step of the model {model.name!r} fails on the first batch, of "
                f"{' and '.join(shapes) or 'no arrays'}: {error_line(error)}"
            ) from error

    def traced() -> Trace:
        return function_step(step, batch)[1]

    if n > 1 and not cut_evenly:
        return cast(Trace, strategy.asking(model, batch, traced))
    return traced()


def build(model: Any, batch: Any) -> None:
    """Build what has no weights yet for a batch of any size, as fit does.

    Built while a step is traced, a Sequential would take the size of that batch for its own.
    """
    def any_size(x: Any) -> Any:
        return keras.KerasTensor((None, *x.shape[1:]), keras.backend.standardize_dtype(x.dtype))

    ours = of_keras(type(model).train_step)  # of others nobody knows
    if ours and not model.built:
        with contextlib.suppress(Exception):  # the step says it better
            x = keras.utils.unpack_x_y_sample_weight(batch)[0]
            model(keras.tree.map_structure(any_size, x))


def _warn_of_more(model: Any) -> None:
    more = [said for said, does in (
        ("compiles the step with XLA into one operation (jit_compile=True)", model.jit_compile),
        ("runs it eagerly (run_eagerly=True)", model.run_eagerly),
        ("runs several steps in one call (steps_per_execution)", model.steps_per_execution > 1),
    ) if does]  # fmt: skip
    if more:
        warnings.warn(
            f"fit {' and '.join(more)}; the trace is of one step, as a graph without XLA.",
            stacklevel=3,
        )
