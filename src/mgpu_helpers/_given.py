"""What a training step is given: inputs, maybe labels and sample weights, by their shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

from mgpu_helpers._formatting import whole_number
from mgpu_helpers._later import keras, tf
from mgpu_helpers._models import ready

Input = tuple[str, tuple[int | None, ...], str]  # a name, a shape and a type


@dataclass(frozen=True)
class Given:
    """A batch of some size: shapes and types of x, and of labels and weights that are known."""

    batch: int
    example: Any  #: (x, y, weights) of `tf.TensorSpec`, of which the first size is any batch
    took: str = ""  #: the sizes of an example, where the model alone does not say them

    @property
    def specs(self) -> Any:
        """Describe the batch as (x, y, weights); None for what is not known."""
        return keras.tree.map_structure(
            lambda x: x and tf.TensorSpec((self.batch, *x.shape[1:]), x.dtype), self.example
        )


def given(model: Any, batch: Any, length: Any = None) -> Given:
    """Find out what a model is given.

    batch is a number of examples, and length a number for all sizes of inputs that are open. Each
    may be data instead, as `first_batch` takes them.
    """
    if isinstance(batch, Given):
        return batch
    ready(model, single=False)
    if not isinstance(batch, Number | str | None):
        if length is not None:
            raise ValueError(f"length={length!r:.60} is beside data, which say it: leave it out.")
        batch, length = None, batch
    inputs = _inputs(model)
    if length is None or isinstance(length, Number | str):
        batch = _whole(batch)
        example = _filled(model, inputs, batch, length)
    else:
        example = _of_data(model, inputs, length)
        batch = _whole(_flat(example)[0].shape[0] if batch is None else batch)
    _check_batch(model, inputs, batch)
    return Given(batch, example, "" if length is None else _sizes(example))


def first_batch(data: Any, model: Any = None) -> Any:
    """Give the first batch of what fit takes; a tuple is one batch itself.

    A model of KerasHub that has a preprocessor is given what that makes of it.
    """
    prepare = getattr(model, "preprocess_samples", keras.utils.pack_x_y_sample_weight)
    if isinstance(data, tuple):
        return prepare(*data)
    of_arrays = isinstance(data, list | dict) and data and all(
        hasattr(each, "shape") for each in (data.values() if isinstance(data, dict) else data)
    )  # fmt: skip
    if of_arrays or hasattr(data, "shape"):
        raise TypeError(
            "data is an array or a list of arrays, each part of which would be a batch: give one "
            "batch as a tuple, (x, y) or (x,), or a tf.data.Dataset of batches."
        )
    for batch in data:
        return prepare(*keras.utils.unpack_x_y_sample_weight(batch))
    raise ValueError(
        f"the {type(data).__name__} has 0 batches, so there is no step to trace: pass at least 1."
    )


def _whole(batch: Any) -> int:
    return whole_number("batch", batch, "a number of examples", 1)


def _flat(tree: Any) -> list[Any]:
    return [each for each in keras.tree.flatten(tree) if each is not None]


def _inputs(model: Any) -> list[Input]:
    """List what a model takes, as far as it says it."""
    inputs = [(each.name, tuple(each.shape), each.dtype)
              for each in getattr(model, "inputs", None) or ()]  # fmt: skip
    if not inputs:  # a subclassed model knows the shape that it was built for, but no type
        shape = (model.get_build_config() or {}).get("input_shape")
        inputs = [("x", (None, *shape[1:]), "float32")] if isinstance(shape, (tuple, list)) else []
    return inputs


def _check_batch(model: Any, inputs: Sequence[Input], batch: int) -> None:
    """Refuse a batch of another size than the one that the model was made for."""
    # A Sequential without Input has the size of the batch that it was first called on.
    stateful = any(getattr(layer, "stateful", False) for layer in getattr(model, "layers", ()))
    own = {shape[0] for _, shape, _ in inputs} - {None, batch}
    if own and (stateful or not isinstance(model, keras.Sequential)):
        raise ValueError(
            f"the model {model.name!r} takes inputs of shape {_shapes(inputs)}, which is no batch "
            f"of {batch}: give batch={own.pop()}, or keras.Input every size except the batch."
        )


def _filled(model: Any, inputs: Sequence[Input], batch: int, length: Any) -> Any:
    """Describe an example from what the model says, with one length for all that is open."""
    if length is not None:
        length = whole_number("length", length, "what the open sizes of inputs are", 1)
    known = inputs and all(isinstance(n, int) for _, shape, _ in inputs for n in shape[1:])
    if not inputs or not known and length is None:
        raise ValueError(
            f"the model {model.name!r} takes inputs of shape {_shapes(inputs)}, and a batch of "
            f"{batch} does not say what is None there: give length=…, one number for all of it, or "
            "in place of the number data as fit takes them: a batch (x, y), or a dataset."
        )
    if known and length is not None:
        raise ValueError(
            f"the model {model.name!r} takes inputs of shape {_shapes(inputs)}, where nothing is "
            f"open that length={length} would say: leave it out."
        )
    specs = [tf.TensorSpec((None, *(length if n is None else n for n in shape[1:])), dtype)
             for _, shape, dtype in inputs]  # fmt: skip
    if isinstance(model, keras.Function):
        return keras.tree.pack_sequence_as(model.input, specs), None, None
    return specs[0] if len(specs) == 1 else specs, None, None


def _of_data(model: Any, inputs: Sequence[Input], data: Any) -> Any:
    """Describe an example as the first batch has it."""
    batch = keras.utils.unpack_x_y_sample_weight(first_batch(data, model))
    leaves = _flat(batch)
    sizes = {each.shape[0] if len(each.shape) else None for each in leaves if _has_shape(each)}
    if not leaves or not all(map(_has_shape, leaves)) or len(sizes) > 1 or None in sizes:
        raise ValueError(
            f"{data!r:.60} has no batch (x,), (x, y) or (x, y, sample_weight) of arrays with as "
            "many examples each: give one as fit takes it, or one number. Several lengths are for "
            "memory.plan."
        )
    x = batch[0]
    taken = [x[name] for name, *_ in inputs if name in x] if isinstance(x, dict) else _flat(x)
    if inputs and (len(taken) != len(inputs) or not all(map(_fits, taken, inputs))):
        raise ValueError(
            f"the model {model.name!r} takes inputs of shape {_shapes(inputs)}, and the batch that "
            f"was given has {', '.join(str(tuple(each.shape)) for each in _flat(x))}: give (x, y) "
            "with x as the model takes it, of several examples, or a dataset after .batch(…)."
        )
    return keras.tree.map_structure(
        lambda each: each if each is None else tf.TensorSpec(each.shape, _type(each)), batch
    )


def _has_shape(each: Any) -> bool:
    return hasattr(each, "shape") and hasattr(each, "dtype")


def _type(each: Any) -> str:
    """Name the type that fit makes of an array."""
    kind = keras.backend.standardize_dtype(each.dtype)
    plain = type(each).__module__ == "numpy"
    return keras.config.floatx() if plain and kind.startswith("float") else kind


def _fits(each: Any, one: Input) -> bool:
    shape, wanted = tuple(each.shape), one[1]
    if len(shape) == len(wanted) - 1 and wanted[-1] == 1:  # Keras adds it
        shape += (1,)
    return len(shape) == len(wanted) and all(
        n is None or n == m for m, n in zip(shape[1:], wanted[1:], strict=True)
    )


def _shapes(inputs: Sequence[Input]) -> str:
    return ", ".join(str(shape) for _, shape, _ in inputs) or "that nobody knows"


def _sizes(example: Any) -> str:
    """Say what sizes an example has."""

    x, y, weights = example
    named = x if isinstance(x, dict) else {"x": x}
    named = {**named, "labels": y, "sample weights": weights}
    return ", ".join(
        " ".join([name, " and ".join("x".join(map(str, each.shape[1:])) or "1" for each in flat)])
        for name, flat in ((name, _flat(part)) for name, part in named.items()) if flat
    )
