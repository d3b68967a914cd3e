"""Data for `fit`: global batches, in one order for all workers."""

from __future__ import annotations

from typing import Any

from mgpu_helpers._later import keras, tf


def batches(
    x: Any, y: Any = None, sample_weight: Any = None, *, batch_size: int | None = None,
    shuffle: bool = False, seed: int = 0,
) -> Any:  # fmt: skip
    """Make a `tf.data.Dataset` of global batches, which is the same one on every worker.

    x is what `fit` takes: arrays, also in tuples and dicts, with y and sample_weight; the tuple
    (x, y) or (x, y, sample_weight) of them; or a `tf.data.Dataset`, of batches or, with batch_size,
    of examples. Of arrays a batch has 32 examples where nothing is said. Other data, such as a
    `keras.utils.PyDataset`, goes back as it is.

    shuffle: another order in every pass, the same one for a seed on each worker and in each run;
    also in a `fit` that goes on after a restart. Without it the order is that of the data.

    >>> data = batches(np.arange(10.0), np.arange(10), batch_size=4)
    >>> [len(x) for x, y in data]
    [4, 4, 2]
    """
    given = isinstance(x, tf.data.Dataset)
    if not given and not all(hasattr(each, "__array__") for each in tf.nest.flatten(x)):
        return x
    if given:
        if y is not None or sample_weight is not None:
            raise ValueError("a Dataset holds its labels and weights: give it alone, as (x, y).")
        data = x.shuffle(10_000, seed) if shuffle else x
        if batch_size is None:
            if any(spec.shape.rank == 0 for spec in tf.nest.flatten(x.element_spec)):
                raise ValueError(
                    f"the Dataset gives {x.element_spec}, which are examples and no batches: give "
                    "batch_size=…, or a Dataset after .batch(…)."
                )
            return data
        return data.batch(batch_size).prefetch(2)
    if not isinstance(x, tuple) or y is not None:
        x = keras.utils.pack_x_y_sample_weight(x, y, sample_weight)
    arrays = tf.nest.map_structure(tf.convert_to_tensor, x)
    sizes = {len(each) for each in tf.nest.flatten(arrays)}
    if len(sizes) != 1:
        raise ValueError(f"the arrays have {sorted(sizes)} examples: give as many in each.")
    (size,) = sizes
    numbers = tf.data.Dataset.range(size)
    if shuffle:
        numbers = numbers.shuffle(size, seed)

    def gathered(rows: Any) -> Any:
        return tf.nest.map_structure(lambda array: tf.gather(array, rows), arrays)

    return numbers.batch(32 if batch_size is None else batch_size).map(gathered).prefetch(2)


def joined(data: Any, among: int) -> Any:
    """Join each so many batches of a dataset, one for each replica, to a global one."""
    if among == 1:
        return data

    def of_all(*parts: Any) -> Any:
        own = parts if isinstance(data.element_spec, tuple) else parts[0]
        return tf.data.Dataset.zip(own).unbatch().batch(tf.int64.max)

    batches, size = data.window(among).flat_map(of_all), data.cardinality()
    return batches.apply(
        tf.data.experimental.assert_cardinality(tf.where(size > 0, -(-size // among), size))
    )
