"""What is known of the losses and numbers of a step, while `fit` traces it."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterable, Iterator, Set
from typing import Any, NamedTuple

from mgpu_helpers._later import tf
from mgpu_helpers._names import of_keras

MEAN, SUM = "mean", "sum"


class Unknown(Exception):
    """A step has a scalar of which nobody has asked yet what it is."""


class Kind(NamedTuple):
    """What a scalar is, beside the shares of Keras that it holds."""

    of: str  # MEAN or SUM
    times: float  # what a replica computes of it where one device computes 1


# A sum of tensors, each times a factor.
Terms = list[tuple[Any, Any]]


class Step:
    """What is known while a step is traced, for a replica, or to ask what its scalars are."""

    def __init__(
        self, kinds: list[Kind] | None, own: bool, strategy: Any, pieces: bool = False
    ) -> None:
        self.kinds = kinds
        self.strategy = strategy
        self.own = own  # it is no step of Keras
        self.shares: list[tuple[Any, Terms]] = []  # known values, and the replica's share of each
        self.asked: list[tuple[Any, Any, str, bool]] = []  # what is left, of what, its name, alone
        self.pieces = pieces  # or other parts: of Keras's losses only those of compile are known
        self.common: list[Any] = []  # what all examples of a batch have in common
        self.exchanged: list[tuple[Any, str]] = []  # what replicas give each other for it, and how
        self.graph: Any = None  # in which a replica is traced, and what gives its examples there
        self.examples: Set[Any] = frozenset()
        self.alike: list[Any] = []  # what all replicas have alike, made of all examples
        self.updated: int | None = None  # operations there were when an optimizer was asked to
        self.late = False  # an optimizer adds gradients up, as in a piece of a batch or a function

    @property
    def asking(self) -> bool:
        return self.kinds is None

    def kind(self, rest: Any, value: Any, what: str, alone: bool) -> Kind:
        """Say what the rest of the next scalar is.

        Where that is being asked, or one replica has the whole batch, anything is a mean.
        """
        self.asked.append((rest, value, what, alone))
        if self.kinds is None or self.strategy.num_replicas_in_sync == 1:
            return Kind(MEAN, 1.0)
        if len(self.asked) > len(self.kinds):
            raise Unknown(what)
        return self.kinds[len(self.asked) - 1]


_now: contextvars.ContextVar[Step | None] = contextvars.ContextVar("step", default=None)


def is_own(step: Any) -> bool:
    """Say whether a model's train_step or test_step is not Keras's."""
    return not of_keras(step)


@contextlib.contextmanager
def tracing(step: Step) -> Iterator[Step]:
    """Let mends know the step that is traced in the block."""
    token = _now.set(step)
    try:
        yield step
    finally:
        _now.reset(token)


def now() -> Step | None:
    """Give the step that is traced at the moment, None outside of steps of `fit`."""
    return _now.get()


def asking() -> bool:
    """Say whether a step is traced only to ask what its scalars are."""
    step = _now.get()
    return step is not None and step.asking


def common(values: Any) -> Any:
    """Remember what all examples have in common, where a step is asked what its scalars are."""
    step = _now.get()
    if step is not None and step.asking:
        flat = tf.nest.flatten(values, expand_composites=True)
        step.common += [each for each in flat if each is not None]
    return values


def exchanged(values: Any, how: str) -> Any:
    """Give what replicas would have in common: in what is being asked, the batch's own."""
    step = _now.get()
    if step is None or not step.asking:
        return values
    step.exchanged += [(each, how) for each in tf.nest.flatten(values)]
    return common(tf.nest.map_structure(tf.identity, values))


def is_sum(op: Any) -> bool:
    """Say whether what replicas give each other is added up; else it is averaged."""
    return bool(getattr(op, "value", op).upper() == "SUM")


def alike(values: Any) -> Any:
    """Remember what all replicas have alike, where one is traced."""
    if (step := _now.get()) is not None and not step.asking:
        step.alike += tf.nest.flatten(values) + tf.nest.flatten(values, expand_composites=True)
    return values


def is_of_replica(value: Any, step: Step) -> bool:
    """Say whether a value is made of a replica's examples otherwise than by what all have alike."""
    if tf.executing_eagerly() or any(each is value for each in step.alike):
        return False
    return any(
        op in step.examples
        for each in tf.nest.flatten(value, expand_composites=True)
        for op in made_of(each, step.alike)
    )


def apart(value: Any, step: Step) -> tuple[list[tuple[Any, Terms, Any]], Any]:
    """Take a scalar apart: the known values in it, each with its share and factor; and the rest.

    The rest is None where it is a known value. Without a graph only that can be seen.
    """
    for one, terms in step.shares:
        if one is value:
            return [(one, terms, tf.ones([], value.dtype))], None
    if not hasattr(value, "graph"):
        return [], value
    known = [each for each in step.shares if each[0].graph is value.graph]
    if not known:
        return [], value
    values = [one for one, _ in known]
    factors = tf.gradients(value, values, stop_gradients=values)
    found = [(*each, f) for each, f in zip(known, factors, strict=True) if f is not None]
    for one, _, factor in found:
        value -= tf.cast(one * factor, value.dtype)
    return found, value


SHAPES = {"Shape", "ShapeN", "Size", "Rank"}  # of a batch, whatever is in it
DIVIDES = {"RealDiv": 1, "Div": 1, "DivNoNan": 1, "Reciprocal": 0, "Inv": 0}  # by which input


def _depends_on_batch(value: Any, without: Iterable[Any]) -> bool:
    """Say whether a value of a graph is made of more than variables and constants."""
    return any(op.type != "Const" and not op.inputs for op in made_of(value, without))


def made_by(value: Any, ops: Set[Any]) -> bool:
    """Say whether a value of a graph is made of what some operations give, or of its shape."""
    return any(op in ops for op in made_of(value, (), SHAPES))


def divided(value: Any, known: Iterable[Any]) -> bool:
    """Say whether a number of what is in a batch divides a value, as the count of a mask does."""
    known = list(known)
    return any(
        op.inputs[DIVIDES[op.type]].shape.rank == 0
        and _depends_on_batch(op.inputs[DIVIDES[op.type]], known)
        for op in made_of(value, known)
        if op.type in DIVIDES
    )


def made_of(
    value: Any, without: Iterable[Any] = (), through: Set[str] = frozenset()
) -> Iterator[Any]:
    """List the operations that a value is made by from what is in a batch."""
    todo, seen = [value], {id(each) for each in without}
    while todo:
        tensor = todo.pop()
        if id(tensor) in seen or tensor.op.type in {*SHAPES, "ReadVariableOp"} - through:
            continue
        seen.add(id(tensor))
        yield tensor.op
        todo += tensor.op.inputs
