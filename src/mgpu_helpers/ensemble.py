"""Several models trained at once, one per device: names, threads, votes, and weights on disk.

Lesson 04 builds it in front of the reader.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import quote

import numpy as np

from mgpu_helpers.wording import counted


@dataclass(frozen=True, eq=False)
class Member:
    """One model of an ensemble: a name, a step that trains it, and a prediction."""

    name: str
    step: Callable[..., Any]  # step(*batch) gives the loss, after one training step
    predict: Callable[[Any], Any]  # predict(images) gives probabilities [n, classes]
    variables: Mapping[str, Any] = field(repr=False)  # by name: what `save` writes
    session: Any = field(default=None, repr=False)  # what runs a classic member's graph


@dataclass(frozen=True, repr=False)
class Run:
    """What a training gave by member: the losses in order, and each step's start and end.

    Times are in seconds since the run began.
    """

    losses: dict[str, list[float]]
    spans: dict[str, list[tuple[float, float]]]
    wall: float

    def __repr__(self) -> str:
        lines = [f"{counted(len(self.losses), 'member')} in {self.wall:.2f} s"]
        for name, losses in self.losses.items():
            said = f"  loss {losses[0]:.3f} to {losses[-1]:.3f}" if losses else ""
            lines.append(f"{name:8}{counted(len(losses), 'step')}{said}")
        return "\n".join(lines)


class MemberError(RuntimeError):
    """A member failed: its name, the step (the first is 1), and the run as far as it went."""

    def __init__(self, said: str, name: str, step: int, run: Run) -> None:
        super().__init__(said)
        self.name, self.step, self.run = name, step, run


def named(graph: Any, name: str) -> Any:
    """Find a tensor ("g1/input:0") or an operation ("g1/train_step") of a graph by its name."""
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


def classic(
    session: Any,
    scope: str,
    *,
    inputs: Sequence[str] = ("input", "label"),
    train: str = "train_step",
    loss: str = "cross_entropy",
    predict: str = "probabilities",
    feed: Mapping[str, Any] | None = None,
) -> Member:
    """Make a member of a session's graph, whose parts are found by their names inside `scope`.

    A step feeds the parts of a batch to `inputs`, in order, and runs the loss and the training in
    one `Session.run`; a prediction feeds the first of them. `feed` is fed in training only, by
    name: {"keep": 0.8}. The variables are all global variables of the graph, since `get_variable`
    does not know name scopes, and since the slots and counters of an optimizer belong to them.
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


def today(
    name: str, step: Callable[..., Any], predict: Callable[[Any], Any], variables: Iterable[Any]
) -> Member:
    """Make a member of today's code: a step and a prediction, and a list of `tf.Variable`.

    A model that shall go on bit for bit needs its optimizer's variables in the list too. A name
    that comes again gets a number. The step is called in a thread, where a `tf.device` block of the
    caller does not hold: open it inside the step.
    """
    by_name: dict[str, Any] = {}
    seen: Counter[str] = Counter()
    for variable in variables:
        label = getattr(variable, "path", variable.name)  # Keras has short names and full paths
        seen[label] += 1
        by_name[label if seen[label] == 1 else f"{label} ({seen[label]})"] = variable
    return Member(name, step, predict, by_name)


def train(members: Iterable[Member], batches: Any, *, at_once: bool = True) -> Run:
    """Train each member on its batches, in a thread of its own; one after another if not at_once.

    `batches` is what every member gets whole (all but a list is made one first, so that all see the
    same), or a function of the member's place, 0 and up, that gives it batches of its own. When a
    member fails, the others end the step they are in, and MemberError is raised; so do all of them
    on KeyboardInterrupt, which is raised again. No thread stays behind.
    """
    members = _checked(members)
    if callable(batches):
        given = [batches(place) for place in range(len(members))]
    else:
        given = [batches if isinstance(batches, list) else list(batches)] * len(members)
    streams = [iter(() if own is None else own) for own in given]
    if len(set(map(id, streams))) < len(streams):
        raise ValueError(
            "the members got one iterator, and each would see a part of it: make a list of it, or "
            "an iterator for each member."
        )
    firsts = [next(stream, None) for stream in streams]
    for member, first in zip(members, firsts, strict=True):
        if first is None:
            raise ValueError(f"{member.name} got no batches: give every member at least one.")
        if not isinstance(first, tuple | list):
            raise TypeError(
                f"{member.name} got a batch that is one {type(first).__name__}: give tuples of "
                "what a step takes, such as (images, labels)."
            )
    streams = [itertools.chain([first], rest) for first, rest in zip(firsts, streams, strict=True)]
    return _run(members, lambda m, batch: float(m.step(*batch)), streams, "step", at_once)


def predictions(
    members: Iterable[Member], images: Any, *, batch: int = 256
) -> dict[str, np.ndarray]:
    """Predict with all members at once, `batch` images a time; probabilities [n, classes] by name.

    A member that fails ends it for all, with MemberError.
    """
    members = _checked(members)
    if batch < 1 or not len(images):
        raise ValueError(f"{len(images)} images, {batch} a time: give at least one of each.")
    pieces = [images[at : at + batch] for at in range(0, len(images), batch)]
    work = [pieces] * len(members)
    run = _run(members, lambda m, piece: np.asarray(m.predict(piece)), work, "piece", True)
    return {name: np.concatenate(parts) for name, parts in run.losses.items()}


def vote(predictions: Any) -> np.ndarray:
    """Give the labels [n] that most members vote for, each with its highest probability.

    A tie goes to the label with the largest sum of probabilities, then to the smallest label.
    `predictions` is what `predictions` gives, or a sequence of arrays [n, classes].
    """
    given = _stacked(predictions)
    votes = (given.argmax(2)[..., None] == np.arange(given.shape[2])).sum(0)
    leads = votes == votes.max(1, keepdims=True)
    return np.where(leads, given.sum(0), -np.inf).argmax(1)


def mean(predictions: Any) -> np.ndarray:
    """Give the labels [n] whose average probability is highest; takes what `vote` takes."""
    return _stacked(predictions).mean(0).argmax(1)


def save(members: Iterable[Member], folder: str | Path) -> list[Path]:
    """Write each member's variables into a file of its own, name.npz; give the files.

    A file that is there is replaced when the new one is whole. What else a model goes by, such as
    a stateful random generator of its graph, is not in it.
    """
    members, folder = _checked(members), Path(folder)
    values = [m.session.run(dict(m.variables)) if m.session else _numpy(m) for m in members]
    folder.mkdir(parents=True, exist_ok=True)
    files = [_file(folder, member) for member in members]
    for file, held in zip(files, values, strict=True):
        part = file.with_name(f"{file.name}.{os.getpid()}.part")
        try:
            with open(part, "wb") as out:
                np.savez(out, **held)
            os.replace(part, file)
        finally:
            part.unlink(missing_ok=True)
    return files


def resume(members: Iterable[Member], folder: str | Path) -> None:
    """Give each member the variables that `save` wrote, once all of them are found to fit.

    Builds nothing: a finalized graph resumes too.
    """
    members = _checked(members)
    held = [_loaded(_file(Path(folder), member), member) for member in members]
    for member, values in zip(members, held, strict=True):
        for name, variable in member.variables.items():
            if member.session:  # one a run: two variables may start from one tensor
                initial = variable.initializer.inputs[1]
                member.session.run(variable.initializer, {initial: values[name]})
            else:
                variable.assign(values[name])


def _checked(members: Iterable[Member]) -> list[Member]:
    members = list(members)
    names = [member.name for member in members]
    if not names:
        raise ValueError("there are no members: make them with classic() or today().")
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


def _run(
    members: list[Member],
    call: Callable[[Member, Any], Any],
    work: list[Iterable[Any]],
    noun: str,
    at_once: bool,
) -> Run:
    """Call with every member and each piece of its work, a thread a member; what it gives is kept.

    A KeyboardInterrupt reaches the main thread only, which is why it just waits, and in short
    turns: not every interrupt wakes a thread that waits for good.
    """
    run = Run({m.name: [] for m in members}, {m.name: [] for m in members}, 0.0)
    stop, began = Event(), time.perf_counter()
    failed: list[tuple[str, int, BaseException]] = []

    def go(member: Member, items: Iterable[Any], ended: Event) -> None:
        losses, spans = run.losses[member.name], run.spans[member.name]
        try:
            for item in items:
                if stop.is_set():
                    return
                start = time.perf_counter() - began
                losses.append(call(member, item))
                spans.append((start, time.perf_counter() - began))
        except BaseException as error:
            failed.append((member.name, len(losses) + 1, error))
            stop.set()
        finally:
            ended.set()

    def wait(thread: Thread, ended: Event) -> None:
        # Not by join() alone: interrupted in it, Python 3.11 takes a running thread for ended.
        while thread.ident is not None and not ended.wait(0.1):
            pass

    ends = [Event() for _ in members]
    threads = [Thread(target=go, args=each) for each in zip(members, work, ends, strict=True)]
    pairs = list(zip(threads, ends, strict=True))
    ahead, interrupted = iter(pairs), None
    while True:
        try:
            for thread, ended in ahead:
                if stop.is_set():
                    break
                thread.start()
                if not at_once:
                    wait(thread, ended)
            for thread, ended in pairs:
                wait(thread, ended)
                if thread.ident is not None:
                    thread.join()
            break
        except BaseException as error:
            stop.set()
            interrupted = interrupted or error
    if interrupted:
        raise interrupted
    run = Run(run.losses, run.spans, time.perf_counter() - began)
    if failed:
        name, step, error = failed[0]
        others = "; the others ended the step they were in" if len(members) > 1 else ""
        said = f"{name} failed in {noun} {step} ({_line(error)}){others}."
        for also, at, other in failed[1:]:
            said += f" {also} failed too, in {noun} {at} ({_line(other)})."
        raise MemberError(said, name, step, run) from error
    return run


def _line(error: BaseException) -> str:
    """Give the line of an error that says what is wrong: TensorFlow's stands above the node."""
    text = str(error).strip() or type(error).__name__
    found = re.search(r"^(?:\s*\(\d+\) [A-Z_]+: )?(.+)\n\s*\[\[\{\{node", text, re.M)
    return found[1].strip() if found else text.splitlines()[0]


def _stacked(predictions: Any) -> np.ndarray:
    """Check predictions, and give them as one array [members, n, classes]."""
    if not isinstance(predictions, Mapping):
        predictions = {f"member {i}": given for i, given in enumerate(predictions)}
    if not predictions:
        raise ValueError("there are no predictions: give those of one member or more.")
    given = {name: np.asarray(rows, np.float64) for name, rows in predictions.items()}
    first = next(iter(given))
    for name, rows in given.items():
        if rows.ndim != 2 or not rows.shape[1]:
            raise ValueError(
                f"{name} has predictions of shape {rows.shape}: give probabilities [n, classes]."
            )
        if rows.shape != given[first].shape:
            axis, what = (1, "label") if rows.shape[1] != given[first].shape[1] else (0, "row")
            counts = [counted(x.shape[axis], what) for x in (given[first], rows)]
            raise ValueError(
                f"{first} has {counts[0]} and {name} has {counts[1]} (shapes "
                f"{given[first].shape} and {rows.shape}): give predictions of the same images "
                "and labels."
            )
        if not np.isfinite(rows).all():
            raise ValueError(f"{name} has predictions that are not finite: leave this member out.")
    return np.stack(list(given.values()))


def _file(folder: Path, member: Member) -> Path:
    return folder / f"{quote(member.name, safe=' ')}.npz"


def _numpy(member: Member) -> dict[str, np.ndarray]:
    return {name: np.asarray(variable) for name, variable in member.variables.items()}


def _loaded(file: Path, member: Member) -> dict[str, np.ndarray]:
    """Read a file of `save`, and check that it fits the member."""
    if not file.exists():
        raise FileNotFoundError(
            f"{member.name} has no {file.name} in {file.parent}: save it first."
        )
    try:
        with np.load(file) as saved:
            held = dict(saved)
    except Exception as error:  # a zip file breaks in many ways
        raise ValueError(
            f"{file} is not a whole file of save() ({_line(error)}): save {member.name} again."
        ) from error
    wanted = {name: _kind(variable) for name, variable in member.variables.items()}
    lacks, more = sorted(wanted.keys() - held.keys()), sorted(held.keys() - wanted.keys())
    apart = [f"lacks {', '.join(lacks[:3])}"] if lacks else []
    apart += [f"has also {', '.join(more[:3])}"] if more else []
    apart += [
        f"has {name} as {_kind(value)} instead of {wanted[name]}"
        for name, value in held.items()
        if _kind(value) != wanted.get(name, _kind(value))
    ]
    if apart:
        raise ValueError(
            f"{file.name} does not fit {member.name}: it {' and '.join(apart[:2])}. Resume "
            "the model that was saved."
        )
    return held


def _kind(x: Any) -> str:
    """Write the type and shape of an array or a variable: "float32 (3, 2)"."""
    return f"{np.dtype(getattr(x.dtype, 'as_numpy_dtype', x.dtype)).name} {tuple(x.shape)}"
