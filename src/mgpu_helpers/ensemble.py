"""Several models trained at once, one per device, each in a thread.

A `concurrent.futures.ThreadPoolExecutor` starts the threads. Here is what it has not: a member that
fails, and Ctrl-C, end the others after the step they are in; each works on its own device; and what
would train on other batches than was meant is refused. For predictions the pool is enough:
`list(pool.map(lambda member: member.predict(images), members))`. Lesson 18 trains with the pool
alone, by `fit`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Event
from typing import Any

from mgpu_helpers._formatting import counted, error_line
from mgpu_helpers._gone import gone
from mgpu_helpers._later import tf
from mgpu_helpers._models import ready
from mgpu_helpers._names import short

__all__ = ["from_keras", "Member", "MemberError", "train"]
__getattr__ = gone(__name__)


@dataclass(frozen=True, eq=False)
class Member:
    """One model of an ensemble: a name, a step that trains it, and a prediction.

    step(*batch) trains once and gives the loss, or what Keras's `train_on_batch` gives: in a list
    the loss comes first, in a dict as "loss". predict(images) gives probabilities [n, classes].
    Both are called in a thread, where a `tf.device` block of the caller does not hold: open it
    inside them.

    >>> w = tf.Variable(1.0)
    >>> member = Member("small", lambda x: w.assign_sub(0.5 * x), lambda x: w * x)
    >>> float(member.step(1.0))
    0.5
    """

    name: str
    step: Callable[..., Any]
    predict: Callable[[Any], Any]


def from_keras(name: str, model: Any, device: str | None = None) -> Member:
    """Make a member from a compiled Keras model: `train_on_batch` on its device, in its thread.

    The device is where the model's weights should be, too: build and compile it in
    `tf.device(device)`, for the optimizer and the metrics have variables as well. With None it is
    where its first weight is. `tf.train.Checkpoint(model=model, optimizer=model.optimizer)` saves
    all that a training needs to go on bit for bit.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, "softmax")])
    >>> model.compile("sgd", "sparse_categorical_crossentropy")
    >>> from_keras("small", model).predict(np.ones((4, 3))).shape
    (4, 2)
    """
    from mgpu_helpers.devices.plan import checked

    ready(model, compiled=True, trained=True)
    (device,) = checked([device or model.variables[0].value.device])
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

    return Member(name, step, predict)


@dataclass(frozen=True, repr=False)
class Run:
    """What a training gave by member: the losses in order, and each step's start and end.

    Times are in seconds since the run began.
    """

    losses: dict[str, list[Any]]
    spans: dict[str, list[tuple[float, float]]]
    wall: float

    def __repr__(self) -> str:
        lines = [f"{counted(len(self.losses), 'member')} in {self.wall:.2f} s"]
        for name, losses in self.losses.items():
            change = f"  loss {losses[0]:.3f} to {losses[-1]:.3f}" if losses else ""
            lines.append(f"{name:8}{counted(len(losses), 'step')}{change}")
        return "\n".join(lines)


class MemberError(RuntimeError):
    """A member failed: its `name`, the `step` (the first is 1), and the `run` as far as it went."""

    def __init__(self, text: str, name: str, step: int, run: Run) -> None:
        super().__init__(text)
        self.name, self.step, self.run = name, step, run


def train(members: Iterable[Member], batches: Any) -> Run:
    """Train each member on its batches, each in a thread.

    `batches` is what every member gets whole (all but a list is made one first, so that all see the
    same), or a function of the member's place, 0 and up, that gives it batches of its own. A batch
    is a tuple of what a step takes. When a member fails, the others end the step they are in, and
    MemberError is raised. On KeyboardInterrupt all members end their step before it goes on to the
    caller. No thread stays behind.

    >>> falling = Member("falling", lambda x: 1 / x, None)
    >>> train([falling], [(1.0,), (2.0,)]).losses
    {'falling': [1.0, 0.5]}
    """
    members = list(members)
    names = [member.name for member in members]
    if len(set(names)) < max(1, len(names)):
        raise ValueError(f"members by the names {names}: give one or more, each another name.")
    run = Run({name: [] for name in names}, {name: [] for name in names}, 0.0)
    stop, began = Event(), time.perf_counter()
    failed: list[tuple[str, int, BaseException]] = []

    def go(member: Member, own: Iterable[Any]) -> None:
        losses, spans = run.losses[member.name], run.spans[member.name]
        try:
            for batch in own:
                if stop.is_set():
                    return
                start = time.perf_counter() - began
                losses.append(_loss(member.step(*batch)))
                spans.append((start, time.perf_counter() - began))
        except BaseException as error:
            failed.append((member.name, len(losses) + 1, error))
            stop.set()

    threads: list[Future[None]] = []
    ahead, interrupted = zip(members, _streams(names, batches), strict=True), None
    with ThreadPoolExecutor(len(members)) as pool:
        # A KeyboardInterrupt reaches this thread only, and may come again before the steps end. It
        # waits in short turns: not every interrupt wakes a thread that waits for good. And it waits
        # here: interrupted while it joins a thread, Python 3.11 takes the running thread for ended.
        while True:
            try:
                threads.extend(pool.submit(go, *each) for each in ahead)
                while wait(threads, timeout=0.1).not_done:
                    pass
                break
            except BaseException as error:
                stop.set()
                interrupted = interrupted or error
    if interrupted:
        raise interrupted
    run = Run(run.losses, run.spans, time.perf_counter() - began)
    if failed:
        name, step, first = failed[0]
        others = "; the others ended the step they were in" if len(members) > 1 else ""
        text = f"{name} failed in step {step} ({error_line(first)}){others}."
        for also, at, other in failed[1:]:
            text += f" {also} failed too, in step {at} ({error_line(other)})."
        raise MemberError(text, name, step, run) from first
    return run


def _streams(names: Sequence[str], batches: Any) -> list[Iterable[Any]]:
    """Give the batches of each member, of which the first is looked at before any step."""
    if callable(batches):
        streams = [iter(batches(place)) for place in range(len(names))]
    else:
        given = batches if isinstance(batches, list) else list(batches)
        streams = [iter(given) for _ in names]
    if len(set(map(id, streams))) < len(streams):
        raise ValueError(
            "the members got one iterator, and each would see a part of it: make a list of it, or "
            "an iterator for each member."
        )
    firsts = [next(stream, None) for stream in streams]
    for name, first in zip(names, firsts, strict=True):
        if not isinstance(first, tuple | list):  # an array would be taken apart into its rows
            kind = "no batches" if first is None else f"a batch that is one {type(first).__name__}"
            raise ValueError(
                f"{name} got {kind}: give every member one batch or more, each a tuple of what a "
                "step takes, such as (images, labels)."
            )
    return [itertools.chain([first], rest) for first, rest in zip(firsts, streams, strict=True)]


def _loss(given: Any) -> float:
    """Take the loss from what a step gives; Keras's `train_on_batch` gives its metrics as well."""
    if isinstance(given, Mapping):
        given = given["loss"]
    return float(given[0] if isinstance(given, list | tuple) else given)
