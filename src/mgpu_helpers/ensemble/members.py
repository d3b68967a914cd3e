"""What an ensemble is made of: a model with its step, its prediction and its variables."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mgpu_helpers._models import ready
from mgpu_helpers.names import short
from mgpu_helpers.wording import counted


@dataclass(frozen=True, eq=False)
class Member:
    """One model of an ensemble: a name, a step that trains it, and a prediction."""

    name: str
    # step(*batch) trains once and gives the loss; in a list it comes first, in a dict as "loss"
    step: Callable[..., Any]
    predict: Callable[[Any], Any]  #: predict(images) gives probabilities [n, classes]
    variables: Mapping[str, Any] = field(repr=False)  #: by name: what `save` writes
    session: Any = field(default=None, repr=False)  #: of from_session: what runs the graph


def named(graph: Any, name: str) -> Any:
    """Find a tensor ("g1/input:0") or an operation ("g1/train_step") of a graph by its name.

    A name that the graph does not have raises KeyError, with the names that are near.

    >>> with tf.Graph().as_default() as graph:
    ...     x = tf.constant(1.0, name="x")
    >>> named(graph, "x:0").name, named(graph, "x").type
    ('x:0', 'Const')
    """
    tensor = ":" in name
    try:
        return (graph.get_tensor_by_name if tensor else graph.get_operation_by_name)(name)
    except KeyError:
        operations = graph.get_operations()
        names = [x.name for op in operations for x in (op.outputs if tensor else [op])]
        near = difflib.get_close_matches(name, names, n=3)
        raise KeyError(
            f"the graph has no {'tensor' if tensor else 'operation'} {name!r}: "
            + (f"did you mean {' or '.join(map(repr, near))}? " if near else "")
            + "graph.get_operations() lists what there is."
        ) from None


def from_session(
    session: Any,
    scope: str,
    *,
    inputs: Sequence[str] = ("input", "label"),
    train: str = "train_step",
    loss: str = "cross_entropy",
    predict: str = "probabilities",
    feed: Mapping[str, Any] | None = None,
) -> Member:
    """Make a member from a session: the parts of its graph are found by name inside `scope`.

    A step feeds the parts of a batch to `inputs`, in order, and runs the loss and the training in
    one `Session.run`; a prediction feeds the first of them. `feed` is fed in training only, by
    name: {"keep": 0.8}. The variables are all global variables of the graph, since `get_variable`
    does not know name scopes, and since the slots and counters of an optimizer belong to them.

        members = [from_session(session, scope) for scope, session in sessions.items()]

    >>> tf1 = tf.compat.v1
    >>> with tf.Graph().as_default() as graph, tf.name_scope("g1"):
    ...     x = tf1.placeholder(tf.float32, [None, 3], name="input")
    ...     y = tf1.placeholder(tf.float32, [None, 2], name="label")
    ...     p = tf.nn.softmax(x @ tf1.get_variable("w", [3, 2]), name="probabilities")
    ...     loss = tf.reduce_mean((p - y) ** 2, name="cross_entropy")
    ...     step = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train_step")
    ...     session = tf1.Session()
    ...     session.run(tf1.global_variables_initializer())
    >>> member = from_session(session, "g1")
    >>> member.predict(np.ones([4, 3])).shape
    (4, 2)
    """
    graph, scope = session.graph, scope.rstrip("/")

    def tensor(name: str) -> Any:
        return named(graph, f"{scope}/{name}" if ":" in name else f"{scope}/{name}:0")

    fed = [tensor(name) for name in inputs]
    extra = {tensor(name): value for name, value in (feed or {}).items()}
    training = [tensor(loss), named(graph, f"{scope}/{train}")]
    predicted = tensor(predict)
    if training[0].shape.rank not in (0, None):
        raise ValueError(
            f"{training[0].name} has shape {training[0].shape}, but a loss is one number: "
            "give its mean the name."
        )
    _check_fed(training, [*fed, *extra], "training")
    _check_fed([predicted], fed[:1], "prediction")

    def step(*batch: Any) -> float:
        if len(batch) != len(fed):
            raise ValueError(
                f"a batch of {counted(len(batch), 'part')} for {counted(len(fed), 'input')} "
                f"({', '.join(inputs)}): give one part for each."
            )
        return session.run(training, {**dict(zip(fed, batch, strict=True)), **extra})[0]

    def probabilities(images: Any) -> np.ndarray:
        return session.run(predicted, {fed[0]: images})

    variables = {v.name: v for v in graph.get_collection("variables")}  # GLOBAL_VARIABLES
    return Member(scope, step, probabilities, variables, session)


def from_functions(
    name: str, step: Callable[..., Any], predict: Callable[[Any], Any], variables: Iterable[Any]
) -> Member:
    """Make a member from functions: a step, a prediction, and the `tf.Variable`s to be saved.

    step(*batch) trains once and gives the loss, or what Keras' `train_on_batch` gives;
    predict(images) gives probabilities [n, classes]. A training that is to go on bit for bit needs
    its optimizer's variables in the list too. A name that comes again gets a number. The step is
    called in a thread, where a `tf.device` block of the caller does not hold: open it inside the
    step.

        member = from_functions("small", step, model, [*model.variables, *optimizer.variables])

    >>> w = tf.Variable(1.0)
    >>> member = from_functions("small", lambda x: w.assign_sub(0.5 * x), lambda x: w * x, [w])
    >>> float(member.step(1.0))
    0.5
    """
    by_name: dict[str, Any] = {}
    seen: Counter[str] = Counter()
    for variable in variables:
        label = getattr(variable, "path", variable.name)  # Keras has short names and full paths
        seen[label] += 1
        by_name[label if seen[label] == 1 else f"{label} ({seen[label]})"] = variable
    return Member(name, step, predict, by_name)


def from_keras(name: str, model: Any, device: str | None = None) -> Member:
    """Make a member from a compiled Keras model: `train_on_batch` on its device, in its thread.

    The device is where the model's weights should be, too: build and compile it in
    `tf.device(device)`, for the optimizer and the metrics have variables as well. With None it is
    where its first weight is. The variables are the model's and the optimizer's, so that a resumed
    training goes on bit for bit.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, "softmax")])
    >>> model.compile("sgd", "sparse_categorical_crossentropy")
    >>> from_keras("small", model).predict(np.ones((4, 3))).shape
    (4, 2)
    """
    import tensorflow as tf

    from mgpu_helpers.devices.plan import checked as there

    ready(model, compiled=True, trained=True)
    (device,) = there([device or model.variables[0].value.device])
    every = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    away = [v for v in every if short(v.value.device) != device]
    if model.jit_compile and away:
        raise ValueError(
            f"the model {model.name!r} is compiled with XLA (jit_compile=True), which wants its "
            f"weights and those of its optimizer and metrics on the device that it runs on, "
            f"{device}, and {away[0].path} is on {short(away[0].value.device)}: build the model "
            f"and compile it in tf.device({device!r})."
        )
    with tf.device(device):
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)

    def step(*batch: Any) -> Any:
        with tf.device(device):
            model.reset_metrics()  # as Keras does from 3.15: before, it gives a running mean
            return model.train_on_batch(*batch)

    def predict(images: Any) -> Any:
        with tf.device(device):
            return model.predict_on_batch(images)

    return from_functions(name, step, predict, [*model.variables, *model.optimizer.variables])


def checked(members: Iterable[Member]) -> list[Member]:
    """Return the members as a list; raise ValueError where there are none or two share a name."""
    members = list(members)
    names = [member.name for member in members]
    if not names:
        raise ValueError("there are no members: make them with from_keras(), from_session() or "
            "from_functions().")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{names.count(name)} members have the name {name!r}: give each one.")
    return members


def _check_fed(wanted: list[Any], fed: list[Any], what: str) -> None:
    """Check that what is wanted of a graph needs no placeholder that is not fed."""
    given, seen = {t.ref() for t in fed}, set()
    operations = [getattr(x, "op", x) for x in wanted]
    while operations:
        op = operations.pop()
        if op.type == "Placeholder":
            raise ValueError(
                f"{what} needs {op.outputs[0].name}, which it does not feed: make it a "
                "tf.compat.v1.placeholder_with_default, or feed it in training by feed=."
            )
        sources = [t.op for t in op.inputs if t.ref() not in given] + list(op.control_inputs)
        operations += [source for source in sources if source not in seen]
        seen.update(sources)
