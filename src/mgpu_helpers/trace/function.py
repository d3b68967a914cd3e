"""Trace one call of a function."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from mgpu_helpers import private
from mgpu_helpers.trace.concrete import concrete_of
from mgpu_helpers.trace.outside import copied, given
from mgpu_helpers.trace.session import session_step
from mgpu_helpers.trace.step import Trace


def function_step(
    function: Callable[..., Any], *args: Any, keep_metadata: bool = False, **named: Any
) -> tuple[Any, Trace]:
    """Trace one call of a function, with or without `tf.function`; return its result and the trace.

    The eager runtime keeps no such trace. So the function's graph is run in a Session, on copies
    of the variables that it uses: what it assigns does not reach yours. What the function leaves
    unplaced goes where a call would put it: on the device of the surrounding `tf.device`, and
    without one where TensorFlow chooses. Results are taken where they were made. keep_metadata
    keeps TensorFlow's record, as `session_step` does.

    >>> result, step = function_step(lambda x: tf.reduce_sum(x * x), tf.ones([3]))
    >>> float(result), [op.type for op in step.ops if op.type == "Sum"]
    (3.0, ['Sum'])
    """
    import tensorflow as tf

    concrete, arguments = concrete_of(function, args, named)
    around = private.device_around()
    outside = given(concrete, arguments)
    fed = {each.name: each.value for each in outside if each.label is None}
    with tf.Graph().as_default() as graph:
        twins, start, begin = copied([each for each in outside if each.label is not None])
        with _session(graph) as session:
            if start:
                session.run(start, begin)
            wanted = [_handed_out(t, twins.keys() | fed.keys()).name for t in concrete.outputs]
            wanted += [op.name for op in concrete.graph.control_outputs]
            with tf.device(around):
                found = tf.graph_util.import_graph_def(
                    concrete.graph.as_graph_def(), twins, return_elements=[*fed, *wanted], name=""
                )
            feed, fetches = dict(zip(found, fed.values())), found[len(fed) :]  # noqa: B905
            session.run(fetches, feed)
            if start:
                session.run(start, begin)  # undo what the first run assigned
            got, trace = session_step(session, fetches, feed, keep_metadata)
    flat = iter(got)
    flattened = tf.nest.flatten(concrete.structured_outputs, expand_composites=True)
    packed = [None if o is None else next(flat) for o in flattened]
    return tf.nest.pack_sequence_as(concrete.structured_outputs, packed, True), trace


def _session(graph: Any) -> Any:
    """Open a Session whose graph so far is run as it is, and optimized when it has grown."""
    import tensorflow as tf

    from mgpu_helpers.devices.plan import current

    if plan := current():
        config = plan.session_config(soft_placement=True)
    else:
        config = tf.compat.v1.ConfigProto()
        config.CopyFrom(private.configured())
    # TensorFlow leaves graphs below a size alone. What sets hundreds of variables once would take
    # as long to optimize as a small model.
    config.graph_options.rewrite_options.min_graph_nodes = max(4, len(graph.get_operations()) + 1)
    return tf.compat.v1.Session(graph=graph, config=config)


def _handed_out(output: Any, given: Set[str]) -> Any:
    """Give the tensor that a function's output hands out; what was given to it is left as it is.

    `tf.function` ends in an Identity for each output, which nobody can place.
    """
    made = output.op.inputs[0] if output.op.type == "Identity" else output
    return output if made.name in given else made
