"""The graph of a function for certain arguments, and what cannot be traced."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from mgpu_helpers import private


def concrete_of(function: Callable[..., Any], args: Any, named: Any) -> tuple[Any, list[Any]]:
    """Give the function's graph for these arguments, traced if it was not, and its tensors."""
    import numpy as np
    import tensorflow as tf

    args, named = tf.nest.map_structure(
        lambda a: tf.constant(a) if isinstance(a, (np.ndarray, np.generic)) else a, (args, named)
    )
    _check(tf.nest.flatten((args, named)))
    _check_loop(function)
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
        if isinstance(error, tf.errors.OperatorNotAllowedInGraphError):
            raise ValueError(
                "the function decides in Python by the value of a tensor, which a graph does not "
                "have, as model.fit and model.evaluate do: trace a step of fit with "
                "trace.fit_step, and write a decision of your own with tf.cond."
            ) from error
        if not private.makes_variables(error):
            raise
        raise ValueError(
            "the function makes variables at each call, and its graph could hold none: make them "
            "(a model, its optimizer, a layer) once before it, and let the function use them."
        ) from None
    _warn_of_xla(concrete)
    return concrete, [a for a in tf.nest.flatten(args, expand_composites=True) if tf.is_tensor(a)]


@contextlib.contextmanager
def _made_whole() -> Iterator[None]:
    """Give their values to the variables that a function made before it failed.

    `tf.function` sets them at its end, and a model without values could never be used again.
    """
    import tensorflow as tf

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


def _check_loop(function: Any) -> None:
    """Raise for what runs a Keras model in a loop of Python's: it would begin, and fail in it."""
    name, model = getattr(function, "__name__", ""), getattr(function, "__self__", None)
    if name in ("fit", "evaluate", "predict", "predict_on_batch") and hasattr(model, "train_step"):
        raise ValueError(
            f"model.{name} is a loop in Python, of which there is no graph: trace one step of fit "
            "with trace.fit_step(model, (x, y)), or one call, trace.function_step(model, x)."
        )


def _check(arguments: list[Any]) -> None:
    import tensorflow as tf

    for each in arguments:
        if isinstance(each, (Iterator, tf.data.Dataset)):
            raise ValueError(
                f"an argument is of type {type(each).__name__}, which cannot be copied for the "
                "trace: pass what it yields, next(iter(it)), in its place."
            )
    shapes = [each.shape for each in arguments if tf.is_tensor(each)]
    if shapes and all(shape.rank and shape[0] == 0 for shape in shapes):
        raise ValueError(
            f"the batch has 0 examples ({', '.join(map(str, shapes))}), so there is no step to "
            "trace: pass at least 1 example."
        )


def _compiles(node: Any) -> bool:
    """Say whether XLA compiles a function, or what a node calls, by its definition."""
    # attr[...] would add what it does not find, and then no function could call this one.
    compiles = node.attr.get(private.MUST_COMPILE)
    return compiles is not None and compiles.b


def _warn_of_xla(concrete: Any) -> None:
    graph = concrete.graph.as_graph_def()
    inside = [node for function in graph.library.function for node in function.node_def]
    if any(_compiles(node) for node in [*graph.node, *inside]):
        warnings.warn(
            "XLA compiles what the function calls (jit_compile=True), each call to one operation: "
            "the trace shows nothing inside; trace it with jit_compile=False to see its parts.",
            stacklevel=4,
        )
