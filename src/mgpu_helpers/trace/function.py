"""Trace one call of a function: its graph is run in a Session, on copies of what it uses."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Set
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._later import tf
from mgpu_helpers.trace.outside import copied, given
from mgpu_helpers.trace.reading import session_step
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
    concrete, arguments = concrete_of(function, args, named)
    around = _private.device_around()
    fed, outside = given(concrete, arguments)
    with tf.Graph().as_default() as graph:
        twins, start, begin = copied(outside)
        with _session(graph) as session:
            if start:  # an empty graph cannot be run
                session.run(start, begin)
            wanted = [_handed_out(t, twins.keys() | fed.keys()).name for t in concrete.outputs]
            wanted += [op.name for op in concrete.graph.control_outputs]
            with tf.device(around):
                found = tf.graph_util.import_graph_def(
                    concrete.graph.as_graph_def(), twins, return_elements=[*fed, *wanted], name=""
                )
            feed, fetches = dict(zip(found, fed.values())), found[len(fed) :]  # noqa: B905
            session.run(fetches, feed)
            session.run(start, begin)  # undo what the first run assigned
            got, trace = session_step(session, fetches, feed)
    flat = iter(got)
    flattened = tf.nest.flatten(concrete.structured_outputs, expand_composites=True)
    packed = [None if o is None else next(flat) for o in flattened]
    return tf.nest.pack_sequence_as(concrete.structured_outputs, packed, True), trace


def _session(graph: Any) -> Any:
    """Open a Session whose graph so far is run as it is, and optimized when it has grown."""
    from mgpu_helpers.devices.plan import current

    plan = current()
    config = plan.session_config(soft_placement=True) if plan else _private.configured()
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


def concrete_of(function: Callable[..., Any], args: Any, named: Any) -> tuple[Any, list[Any]]:
    """Give the function's graph for these arguments, traced if it was not, and its tensors."""
    import numpy as np
    args, named = tf.nest.map_structure(
        lambda a: tf.constant(a) if isinstance(a, (np.ndarray, np.generic)) else a, (args, named)
    )
    shapes = [each.shape for each in tf.nest.flatten((args, named)) if tf.is_tensor(each)]
    if shapes and all(shape.rank and shape[0] == 0 for shape in shapes):
        raise ValueError(
            f"the batch has 0 examples ({', '.join(map(str, shapes))}), so there is no step to "
            "trace: pass at least 1 example."
        )
    called = function
    if named:  # as arguments of their own: a tensor that is captured may become a constant
        function, args = lambda args, named: called(*args, **named), (args, named)
    graphed: Any = function
    if not hasattr(graphed, "get_concrete_function"):
        graphed = tf.function(graphed)
    try:
        with _made_whole():
            concrete = graphed.get_concrete_function(*args)
        if _compiles(concrete.function_def):  # else its body would run without XLA
            compiled = graphed
            concrete = tf.function(lambda *args: compiled(*args)).get_concrete_function(*args)
    except Exception as error:
        decides = isinstance(error, tf.errors.OperatorNotAllowedInGraphError)
        if decides or "has no attribute 'numpy'" in str(error):
            raise ValueError(
                "the function needs the value of a tensor in Python, which a graph does not have, "
                "as model.fit, evaluate and predict do: trace a step of fit with trace.fit_step, "
                "and write a decision of your own with tf.cond."
            ) from error
        if not _private.makes_variables(error):
            raise
        raise ValueError(
            "the function makes variables at each call, and its graph could hold none: make them "
            "(a model, its optimizer, a layer) once before it, and let the function use them."
        ) from None
    graph = concrete.graph.as_graph_def()
    inside = [node for each in graph.library.function for node in each.node_def]
    if any(map(_compiles, [*graph.node, *inside])):
        warnings.warn(
            "XLA compiles what the function calls (jit_compile=True), each call to one operation: "
            "the trace shows nothing inside; trace it with jit_compile=False to see its parts.",
            stacklevel=3,
        )
    return concrete, [a for a in tf.nest.flatten(args, expand_composites=True) if tf.is_tensor(a)]


def _compiles(node: Any) -> bool:
    """Say whether XLA compiles a function, or what a node calls, by its definition."""
    # attr[...] would add what it does not find, and then no function could call this one.
    compiles = node.attr.get(_private.MUST_COMPILE)
    return compiles is not None and compiles.b


@contextlib.contextmanager
def _made_whole() -> Iterator[None]:
    """Give their values to the variables that a function made before it failed.

    `tf.function` sets them at its end, and a model without values could never be used again.
    """
    made = []

    def keep(create: Callable[..., Any], **settings: Any) -> Any:
        variable = create(**settings)
        made.append((variable, settings.get("initial_value")))
        return variable

    try:
        with tf.variable_creator_scope(keep):
            yield
    except Exception:
        for variable, initial in made:
            if callable(initial) and not variable.is_initialized():
                variable.assign(initial())
        raise
