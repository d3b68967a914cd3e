"""What a function's graph takes from outside: its arguments, and what it captured."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._later import tf


@dataclass(frozen=True)
class Outside:
    """A variable, or a tensor that a function captured: what one input of its graph is given."""

    name: str  # of the input
    value: Any  # as NumPy has it
    dtype: Any
    shape: Any  # a variable's may leave open what its value says
    device: str
    label: str  # what to call a copy of it
    variable: bool  # the graph takes its handle
    keys: Any = None  # of a table, of which `value` is what it gives for each: a tensor


# What a table may be of, which it does not say: the first two pairs are those of Keras's layers.
KEYS = ("string", "int64", "int32")
VALUES = ("int64", "string", "int32", "float32", "float64", "bool")


def given(concrete: Any, arguments: list[Any]) -> tuple[dict[str, Any], list[Outside]]:
    """Give what to feed a concrete function, by its inputs' names; and what else it is given.

    A variable comes as its handle. It is read through that, so that a replica's own variable, or
    one that only the library knows, is read as any other.
    """
    variables = [*concrete.variables, *(a for a in arguments if isinstance(a, tf.Variable))]
    names = {id(variable.handle): variable.name for variable in variables}
    inputs = [a.handle if isinstance(a, tf.Variable) else a for a in arguments]
    inputs += concrete.captured_inputs
    fed, outside = {}, []
    for i, (inner, outer) in enumerate(zip(concrete.inputs, inputs, strict=True)):
        variable = outer.dtype in (tf.resource, tf.variant)
        if variable:
            about = _private.resource_data(inner)
            if not about.is_set and (table := _table(inner.name, outer)):
                outside.append(table)
                continue
            if not about.is_set:
                raise ValueError(
                    f"the function uses {inner.name}, a dataset, an iterator or the like, which "
                    "cannot be copied for the trace: use it before, and pass what it gives as an "
                    "argument (of an iterator: next(iterator))."
                )
            about = about.shape_and_type[0]
            value = tf.raw_ops.ReadVariableOp(resource=outer, dtype=about.dtype)
            shape, device = tf.TensorShape(about.shape), outer.device
        else:
            value = tf.convert_to_tensor(outer)  # Keras takes its variables for tensors
            shape, device = value.shape, value.device
        if variable or i >= len(arguments):
            label = names.get(id(outer), inner.name).partition(":")[0]
            outside.append(
                Outside(inner.name, value.numpy(), value.dtype, shape, device, label, variable)
            )
        else:
            fed[inner.name] = value.numpy()
    return fed, outside


def _table(name: str, handle: Any) -> Outside | None:
    """Read a table, as a layer that looks words up has one; give None for anything else."""
    for key, value in itertools.product(map(tf.as_dtype, KEYS), map(tf.as_dtype, VALUES)):
        # To look nothing up is refused where the types are others; to read the table is not.
        with contextlib.suppress(tf.errors.OpError):
            tf.raw_ops.LookupTableFindV2(
                table_handle=handle, keys=tf.zeros([0], key), default_value=tf.zeros([], value)
            )
            keys, values = tf.raw_ops.LookupTableExportV2(
                table_handle=handle, Tkeys=key, Tvalues=value
            )
            return Outside(
                name, values.numpy(), value, values.shape, handle.device, "table", True, keys
            )
    return None


def copied(outside: list[Outside]) -> tuple[dict[str, Any], list[Any], dict[Any, Any]]:
    """Add variables and tables with these values to the current graph.

    Give what stands for each input, by its name; what sets them; and what to feed for it.
    """
    import numpy as np
    twins, start, begin = {}, [], {}

    def fed(value: Any, dtype: Any) -> Any:
        placeholder = tf.raw_ops.Placeholder(dtype=dtype, shape=np.shape(value))
        begin[placeholder] = value
        return placeholder

    for i, each in enumerate(outside):
        # Raw operations: a tf.Variable would add three more, and a large model has hundreds.
        with tf.device(each.device), tf.name_scope("outside/"):
            if each.keys is not None:
                twins[each.name] = table = tf.raw_ops.MutableHashTableV2(
                    key_dtype=each.keys.dtype, value_dtype=each.dtype, shared_name=f"outside/{i}",
                    name=each.label,
                )  # fmt: skip
                keys = fed(each.keys.numpy(), each.keys.dtype)
                start.append(tf.raw_ops.LookupTableImportV2(
                    table_handle=table, keys=keys, values=fed(each.value, each.dtype)
                ))  # fmt: skip
                continue
            handle = tf.raw_ops.VarHandleOp(
                dtype=each.dtype, shape=each.shape, shared_name=f"outside/{i}", name=each.label
            )
            # With a buffer of its own: one that is shared would be copied by each assignment.
            value = tf.raw_ops.DeepCopy(x=fed(each.value, each.dtype))
            start.append(tf.raw_ops.AssignVariableOp(resource=handle, value=value))
            # A captured tensor becomes a variable too: TensorFlow would fold a constant away.
            twins[each.name] = handle if each.variable else tf.raw_ops.ReadVariableOp(
                resource=handle, dtype=each.dtype, name=f"{each.label}/read"
            )  # fmt: skip
    return twins, start, begin
