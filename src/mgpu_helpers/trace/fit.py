"""Trace one step of what a Keras model's fit runs."""

from __future__ import annotations

import warnings
from typing import Any

from mgpu_helpers.trace.function import function_step
from mgpu_helpers.trace.step import Trace


def fit_step(model: Any, data: Any, *, keep_metadata: bool = False) -> Trace:
    """Trace one step of `model.fit(data)`, on the first batch; the model stays as it was.

    data is what fit takes: a tf.data.Dataset, a keras.utils.PyDataset, an iterable of batches; or a
    tuple, which is one batch (x, y) or (x, y, sample_weight) itself. A generator is left without
    its first batch. What fit would build first (layers, the optimizer's variables) is built.

    The step is traced alone, as operations: what fit does beyond that is warned of, which is to
    compile it with XLA, to run it eagerly, or several steps in one call.

    >>> import keras
    >>> model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    >>> model.compile("sgd", "mse")
    >>> step = fit_step(model, (np.ones([4, 3], "f"), np.ones([4, 2], "f")))
    >>> [op.bytes for op in step.ops if "MatMul" in op.type]  # forward, and of the weights
    [32, 24]
    """
    import tensorflow as tf

    if not hasattr(model, "train_step"):
        raise TypeError(f"model is {type(model).__name__}: pass a keras.Model, which has fit.")
    if not model.compiled:
        raise ValueError(
            f"the model {model.name!r} is not compiled, so fit has no loss and no optimizer: call "
            "model.compile(optimizer, loss) first."
        )
    batch, strategy = _first(data), model.distribute_strategy
    if (n := strategy.num_replicas_in_sync) > 1:  # each replica gets its share, as from fit
        size = len(tf.nest.flatten(batch)[0])
        if size % n:  # Keras adds up the first shares of all to find their shape
            raise ValueError(
                f"the first batch has {size} examples, of which {n} replicas cannot get the same "
                f"number, and fit cannot begin so: give it a multiple of {n}."
            )
        whole = tf.data.Dataset.from_tensors(batch)
        shared = strategy.experimental_distribute_dataset(whole)
        if getattr(model, "history", None) is None:  # never fitted: a replica makes no variables
            model.fit(shared, epochs=0, verbose=0, shuffle=False)
        batch = next(iter(shared))
    _warn_of_more(model)

    @tf.autograph.experimental.do_not_convert
    def step(batch: Any) -> Any:
        return strategy.run(model.train_step, args=(batch,))

    return function_step(step, batch, keep_metadata=keep_metadata)[1]


def _first(data: Any) -> Any:
    import keras

    if isinstance(data, tuple):
        return data
    if isinstance(data, keras.utils.PyDataset):
        batches = (data[i] for i in range(len(data) or 0))
    else:
        batches = iter(data)
    for batch in batches:
        return batch
    raise ValueError(
        f"the {type(data).__name__} has 0 batches, so there is no step to trace: pass at least 1."
    )


def _warn_of_more(model: Any) -> None:
    more = []
    if model.jit_compile:
        more.append("compiles the step with XLA into one operation (jit_compile=True)")
    if model.run_eagerly:
        more.append("runs it eagerly (run_eagerly=True)")
    if model.steps_per_execution > 1:
        more.append(f"runs {model.steps_per_execution} steps in one call (steps_per_execution)")
    if more:
        warnings.warn(
            f"fit {' and '.join(more)}; the trace is of one step, as a graph without XLA.",
            stacklevel=3,
        )
