"""Trace one call of a function."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from mgpu_helpers.trace.session import session_step
from mgpu_helpers.trace.step import Trace


def function_step(function: Callable[..., Any], *args: Any, **named: Any) -> tuple[Any, Trace]:
    """Trace one call of a function, with or without `tf.function`; return its result and the trace.

    The eager runtime keeps no such trace. So the function's graph is run in a Session, on copies
    of the variables that it uses: what it assigns does not reach yours. What the function leaves
    unplaced goes where a call would put it: on the device of the surrounding `tf.device`, and
    without one where TensorFlow chooses. Results are taken where they were made.

    >>> result, step = function_step(lambda x: tf.reduce_sum(x * x), tf.ones([3]))
    >>> float(result), [op.type for op in step.ops if op.type == "Sum"]
    (3.0, ['Sum'])
    """
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.eager import context

    from mgpu_helpers.devices.plan import current

    args, named = tf.nest.map_structure(
        lambda a: tf.constant(a) if isinstance(a, (np.ndarray, np.generic)) else a, (args, named)
    )
    called = function
    if named:  # a tensor among them is then captured, as one from outside is
        function = tf.function(lambda *args: called(*args, **named))
    elif not hasattr(function, "get_concrete_function"):
        function = tf.function(function)
    concrete = function.get_concrete_function(*args)
    given = [a for a in tf.nest.flatten(args, expand_composites=True) if tf.is_tensor(a)]
    variables = [a for a in tf.nest.flatten(args) if isinstance(a, tf.Variable)]
    known = {id(key): v for v in (*concrete.variables, *variables) for key in (v, v.handle)}
    outside = [*given, *concrete.captured_inputs]
    numbers = {}  # what comes in as a tensor or a variable: the placeholder's name -> its value
    for inner, outer in zip(concrete.inputs, outside, strict=True):
        if outer.dtype in (tf.resource, tf.variant) and id(outer) not in known:
            raise ValueError(
                f"the function uses {outer}, which is neither a tensor nor a variable and cannot "
                "be copied for the trace: pass what it yields as an argument."
            )
        numbers[inner.name] = known.get(id(outer), outer).numpy()
    fed = [t.name for t, a in zip(concrete.inputs, given) if id(a) not in known]  # noqa: B905
    around = context.context().device_name or None
    with tf.Graph().as_default() as graph:
        twins, begin = {}, {}
        for inner, outer in zip(concrete.inputs, outside, strict=True):
            if inner.name in fed:
                continue
            variable = known.get(id(outer))
            dtype = (outer if variable is None else variable).dtype
            label = (inner if variable is None else variable).name.partition(":")[0]
            # A captured tensor becomes a variable too: TensorFlow would fold a constant away.
            with tf.device(outer.device), tf.name_scope("outside"):
                value = tf.compat.v1.placeholder(dtype, np.shape(numbers[inner.name]))
                begin[value] = numbers[inner.name]
                # With a buffer of its own: one that is shared would be copied by each assignment.
                value = tf.raw_ops.DeepCopy(x=value)
                twin = tf.compat.v1.Variable(value, use_resource=True, name=label)
                twins[inner.name] = twin.value() if variable is None else twin.handle
        wanted = [_handed_out(t, twins.keys() | set(fed)).name for t in concrete.outputs]
        wanted += [op.name for op in concrete.graph.control_outputs]
        with tf.device(around):
            found = tf.graph_util.import_graph_def(
                concrete.graph.as_graph_def(), twins, return_elements=fed + wanted, name=""
            )
        feed = {tensor: numbers[name] for tensor, name in zip(found, fed)}  # noqa: B905
        fetches = found[len(fed) :]
        start = tf.compat.v1.global_variables_initializer()
    config = current().session_config(soft_placement=True) if current() else None
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        session.run(start, begin)
        session.run(fetches, feed)
        session.run(start, begin)  # undo what the first run assigned
        got, trace = session_step(session, fetches, feed)
    flat = iter(got)
    flattened = tf.nest.flatten(concrete.structured_outputs, expand_composites=True)
    packed = [None if o is None else next(flat) for o in flattened]
    return tf.nest.pack_sequence_as(concrete.structured_outputs, packed, True), trace


def _handed_out(output: Any, given: Set[str]) -> Any:
    """Give the tensor that a function's output hands out; what was given to it is left as it is.

    `tf.function` ends in an Identity for each output, which nobody can place.
    """
    made = output.op.inputs[0] if output.op.type == "Identity" else output
    return output if made.name in given else made
