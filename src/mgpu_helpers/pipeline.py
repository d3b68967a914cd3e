"""A model in stages, each on its device; a batch in pieces; and the order in which devices work.

Lesson 05 builds it in front of the reader.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from typing import Any

from mgpu_helpers import models, towers
from mgpu_helpers.devices import current
from mgpu_helpers.trace import Op, Trace, curve
from mgpu_helpers.wording import counted, size_text, whole

_FREE = {"Const", "NoOp", "Placeholder"}  # they take no time, and start when a step does

Schedule = list[list[str]]  # for each stage its tasks in order: "F0" is piece 0 forward, "B0" back


@dataclass(frozen=True)
class Stage:
    """A part of a model: where it is, what it makes of (weights, x), and its weights by name."""

    device: str
    function: Callable[[Mapping[str, Any], Any], Any] = field(repr=False)
    weights: Mapping[str, Any] = field(repr=False)


def cut(network: models.Network, starts: Sequence[str]) -> list[models.Network]:
    """Cut a network into parts: a new one begins with each layer that `starts` names."""
    names = [getattr(layer, "name", None) for layer in network.layers]
    starts, known = list(starts), ", ".join(filter(None, names[1:]))
    if len(starts) >= len(names):
        raise ValueError(
            f"{counted(len(starts) + 1, 'stage')} cannot be cut from "
            f"{counted(len(names), 'layer')}: name {counted(len(names) - 1, 'start')} or fewer."
        )
    for name in starts:
        if name is None or name not in names:
            raise ValueError(
                f"{network.name} has no layer {name!r} to begin a stage with: use one of {known}."
            )
    at = [0, *(names.index(name) for name in starts), len(names)]
    for i, (a, b) in enumerate(itertools.pairwise(at)):
        if a >= b:
            said = "be empty" if a == b else f"begin before stage {i}"
            raise ValueError(
                f"stage {i if a == b else i + 1} would {said} with starts={starts}: name layers "
                f"in the order of the network, {known}."
            )
    shapes = [before for _, before, _ in models.walk(network)]
    return [
        replace(network, layers=network.layers[a:b], input=shapes[a])
        for a, b in itertools.pairwise(at)
    ]


def stages(
    network: models.Network, starts: Sequence[str], devices: Sequence[str], *, seed: int = 0
) -> list[Stage]:
    """Cut a network and give each part its device and its weights, in a graph or in today's code.

    The weights start as those of the whole network do with this seed. A device may have several
    stages.
    """
    import tensorflow as tf

    parts = cut(network, starts)
    if len(parts) != len(devices):
        raise ValueError(
            f"{counted(len(parts), 'stage')} and {counted(len(devices), 'device')}: give one "
            "device for each stage."
        )
    _check_devices(devices)
    classic = not tf.compat.v1.executing_eagerly_outside_functions()
    values, made = models.initial(network, seed), []
    for part, device in zip(parts, devices, strict=True):
        weights = {}
        for name in models.shapes(part):
            with tf.device(device):
                weights[name] = (
                    tf.compat.v1.get_variable(name, initializer=values[name])
                    if classic
                    else tf.Variable(values[name], name=name)
                )
        made.append(Stage(device, functools.partial(models.logits, part), weights))
    return made


def _check_devices(devices: Sequence[str]) -> None:
    plan = current()
    for device in devices if plan else ():
        if device not in (plan.host, *plan.devices):
            raise ValueError(
                f"a stage is on {device}, which is not there: use {', '.join(plan.devices)}."
            )


def _check_names(stages: Sequence[Stage]) -> None:
    owners: dict[str, tuple[int, Any]] = {}
    for s, stage in enumerate(stages):
        for name, weight in stage.weights.items():
            first, same = owners.setdefault(name, (s, weight))
            if weight is not same:
                raise ValueError(
                    f"stages {first} and {s} have different weights under one name, {name!r}: "
                    "give each weight its own, or share one."
                )


def in_turn(stages: int, pieces: int) -> Schedule:
    """Let each piece go forward and back before the next one starts."""
    stages, pieces = _sizes(stages, pieces)
    return [[f"{kind}{k}" for k in range(pieces) for kind in "FB"] for _ in range(stages)]


def all_forward(stages: int, pieces: int) -> Schedule:
    """Let all pieces go forward, then all back."""
    stages, pieces = _sizes(stages, pieces)
    return [[f"{kind}{k}" for kind in "FB" for k in range(pieces)] for _ in range(stages)]


def one_forward_one_backward(stages: int, pieces: int) -> Schedule:
    """Let a stage fill the ones behind it, then go back with one piece for each that goes forward.

    Stage s of p never holds more than p - s pieces.
    """
    stages, pieces = _sizes(stages, pieces)
    schedule = []
    for stage in range(stages):
        ahead = min(pieces, stages - stage)
        tasks = [f"F{k}" for k in range(ahead)]
        for k in range(pieces):
            tasks += [f"B{k}", f"F{k + ahead}"] if k + ahead < pieces else [f"B{k}"]
        schedule.append(tasks)
    return schedule


def _sizes(stages: int, pieces: int) -> tuple[int, int]:
    return whole("stages", stages, "a number of stages", 1), whole(
        "pieces", pieces, "a number of micro-batches", 1
    )


def bubble(stages: int, pieces: int) -> float:
    """Give the share of the time, 0 to 1, in which a device waits, if all tasks take as long."""
    stages, pieces = _sizes(stages, pieces)
    return (stages - 1) / (pieces + stages - 1)


def run_times(
    schedule: Sequence[Sequence[str]],
    forward: Sequence[float] | None = None,
    backward: Sequence[float] | None = None,
    devices: Sequence[str] | None = None,
) -> dict[tuple[int, str], tuple[float, float]]:
    """Give when each task of each stage starts and ends, by (stage, task), in the order they start.

    forward and backward are what a task of each stage takes (None: 1 each, which suffices for the
    order). A device does one task after another; where stages share one, `devices` says so.
    """
    pieces = check(schedule)
    p = len(schedule)
    for name, each in {"forward": forward, "backward": backward, "devices": devices}.items():
        if each is not None and len(each) != p:
            raise ValueError(
                f"{name} has {counted(len(each), 'value')} for {counted(p, 'stage')}: give one "
                "for each."
            )
    unit = [1.0] * p
    cost = {"F": unit if forward is None else forward, "B": unit if backward is None else backward}
    where = range(p) if devices is None else devices
    free: dict[Any, float] = defaultdict(float)
    at, spans = [0] * p, {}
    while len(spans) < 2 * p * pieces:
        ready = []
        for s, tasks in enumerate(schedule):
            if at[s] < len(tasks):
                needed = [spans.get(n) for n in _needs(s, tasks[at[s]], p)]
                if None not in needed:
                    start = max([free[where[s]], *(end for _, end in needed)])
                    # Of two that could start on a device, what goes back first sets memory free.
                    ready.append((start, tasks[at[s]][0], s))
        start, _, s = min(ready)
        task = schedule[s][at[s]]
        spans[s, task] = start, start + cost[task[0]][s]
        free[where[s]] = spans[s, task][1]
        at[s] += 1
    return spans


def _needs(stage: int, task: str, stages: int) -> list[tuple[int, str]]:
    """List what has to be done before a task."""
    if task[0] == "F":
        return [(stage - 1, task)] if stage else []
    later = [(stage + 1, task)] if stage + 1 < stages else []
    return [(stage, "F" + task[1:]), *later]


def check(schedule: Sequence[Sequence[str]]) -> int:
    """Check that an order can run; give the number of its pieces, or a ValueError with the task."""
    if not schedule or not all(schedule):
        empty = next((s for s, tasks in enumerate(schedule) if not tasks), 0)
        raise ValueError(f"stage {empty} has no tasks: give each stage its F and B of every piece.")
    tasks = itertools.chain(*schedule)
    if wrong := [task for task in tasks if not re.fullmatch(r"[FB](0|[1-9]\d*)", str(task))]:
        raise ValueError(f"{wrong[0]!r} is not a task: write F0 for piece 0 forward, B0 for back.")
    pieces = 1 + max(int(task[1:]) for tasks in schedule for task in tasks)
    for s, tasks in enumerate(schedule):
        for task in (f"{kind}{k}" for k in range(pieces) for kind in "FB"):
            if tasks.count(task) != 1:
                raise ValueError(
                    f"stage {s} has {task} {counted(tasks.count(task), 'time')}: "
                    "every stage does F and B of every piece once."
                )
    at, done = [0] * len(schedule), set()
    moved = True
    while moved:
        moved = False
        for s, tasks in enumerate(schedule):
            while at[s] < len(tasks) and done.issuperset(_needs(s, tasks[at[s]], len(schedule))):
                done.add((s, tasks[at[s]]))
                at[s] += 1
                moved = True
    stuck = [
        (s, tasks[at[s]], next(n for n in _needs(s, tasks[at[s]], len(schedule)) if n not in done))
        for s, tasks in enumerate(schedule)
        if at[s] < len(tasks)
    ]
    if stuck:  # of several, the one that waits for itself: the others wait for it
        s, task, (stage, missing) = min(stuck, key=lambda one: one[0] != one[2][0])
        raise ValueError(
            f"stage {s} cannot do {task} as its task {at[s] + 1}: it needs {missing} of stage "
            f"{stage}, which in this order cannot run before it."
        )
    return pieces


def table(schedule: Sequence[Sequence[str]], devices: Sequence[str] | None = None) -> str:
    """Write a schedule as a table: a line for each stage, a column for each unit of time."""
    spans = run_times(schedule, devices=devices)
    columns = round(max(end for _, end in spans.values()))
    cells = [["."] * columns for _ in schedule]
    for (stage, task), (start, _) in spans.items():
        cells[stage][round(start)] = task
    wide = max(len(task) for tasks in schedule for task in tasks)
    return "\n".join(
        f"stage {s}: " + " ".join(f"{cell:{wide}}" for cell in row).rstrip()
        for s, row in enumerate(cells)
    )


def gradients(
    stages: Sequence[Stage],
    loss: Callable[[Any, Any], Any],
    x: Any,
    y: Any,
    schedule: Sequence[Sequence[str]] | None = None,
    *,
    uneven: bool = False,
    streams: bool = True,
) -> tuple[Any, dict[str, Any]]:
    """Compute the mean loss of a batch and its gradients by weight, in a graph or a `tf.function`.

    The batch goes through the stages in as many pieces as the schedule has (None: whole).
    `loss(outputs, labels)` is the mean over a piece; it counts by the size of the piece, so with
    uneven=True the last pieces may be smaller. Where two stages share a weight, both gradients are
    added. With streams=False a device does what it can do first, in any order.
    """
    import tensorflow as tf

    if tf.executing_eagerly():
        raise RuntimeError(
            "eager code does one operation after the other, so that stages never overlap: call "
            "gradients inside a tf.function or a graph."
        )
    schedule = in_turn(len(stages), 1) if schedule is None else schedule
    pieces, p = check(schedule), len(stages)
    if len(schedule) != p:
        raise ValueError(
            f"a schedule for {counted(len(schedule), 'stage')} does not fit {p}: make one for {p}."
        )
    where = [stage.device for stage in stages]
    _check_devices(where)
    _check_names(stages)
    given = list(zip(*towers.split((x, y), pieces, uneven=uneven, into="piece"), strict=True))
    with tf.device(towers.HOST):
        share = towers.shares(tf.shape(y)[0] if y.shape[0] is None else y.shape[0], pieces)
    graph = tf.compat.v1.get_default_graph()
    queue: dict[str, list[Any]] = defaultdict(list)  # what each device has to do, in order
    made = len(graph.get_operations())

    def enqueue(device: str) -> None:
        nonlocal made
        operations = graph.get_operations()
        queue[device] += operations[made:]
        made = len(operations)

    weights = []
    for s, stage in enumerate(stages):
        with tf.device(stage.device), tf.name_scope(f"stage_{s}"):
            weights.append(models.read(stage.weights))
        enqueue(stage.device)
    inputs: dict[tuple[int, int], Any] = {}
    outputs: dict[tuple[int, int], Any] = {}
    back: dict[tuple[int, int], Any] = {}  # the gradient of what a stage was given
    losses, sums = [], [dict[str, Any]() for _ in stages]
    for s, task in run_times(schedule, devices=where):
        k = int(task[1:])
        with tf.device(where[s]), tf.name_scope(f"stage_{s}/{task}"):
            if task[0] == "F":
                inputs[s, k] = tf.identity(outputs[s - 1, k] if s else given[0][k])
                outputs[s, k] = stages[s].function(weights[s], inputs[s, k])
                if s == p - 1:
                    part = loss(outputs[s, k], given[1][k])
                    if part.shape.rank:
                        raise ValueError(
                            f"loss gave an array of shape {part.shape} for a micro-batch: return "
                            "its mean, a single value."
                        )
                    outputs[s, k] = part * tf.cast(share[k], part.dtype)
                    losses.append(outputs[s, k])
            else:
                targets = [*weights[s].values(), *([inputs[s, k]] if s else [])]
                found = tf.gradients(
                    outputs[s, k], targets, grad_ys=back.get((s + 1, k)),
                    unconnected_gradients="zero",
                )  # fmt: skip
                back[s, k] = found.pop() if s else None
                for name, gradient in zip(weights[s], found, strict=True):
                    before = sums[s].get(name)
                    gradient = tf.convert_to_tensor(gradient)
                    sums[s][name] = gradient if before is None else before + gradient
        enqueue(where[s])
    with tf.device(where[-1]):
        total = tf.add_n(losses)
    enqueue(where[-1])
    result: dict[str, Any] = {}
    for stage, added in zip(stages, sums, strict=True):
        for name, gradient in added.items():
            with tf.device(stage.device):
                result[name] = gradient if name not in result else result[name] + gradient
        enqueue(stage.device)
    if streams:
        for operations in queue.values():
            stream(operations)
    return total, result


def stream(operations: Sequence[Any]) -> None:
    """Let each operation wait for the one before it: a device then does one at a time, in order.

    That is what a GPU does; a logical CPU starts whatever is ready. Constants do not wait.
    """
    chain = [op for op in operations if op.type not in _FREE]
    for before, op in itertools.pairwise(chain):
        op._add_control_input(before)


@dataclass(frozen=True)
class Span:
    """When a device was at a task of a stage: seconds from the start of the traced step."""

    stage: int
    task: str
    device: str
    start: float
    length: float


def task_of(op: Op) -> tuple[int, str] | None:
    """Find the stage and the task of an operation of `gradients`; None for any other."""
    named = re.search(r"(?:^|/)stage_(\d+)/([FB]\d+)(?:_\d+)?/", op.name)
    return (int(named[1]), named[2]) if named and op.type not in _FREE else None


def spans(trace: Trace) -> list[Span]:
    """Find the tasks of `gradients` in a trace, by their start."""
    found: dict[tuple[int, str], list[Op]] = defaultdict(list)
    for op in trace.ops:
        if at := task_of(op):
            found[at].append(op)
    made = []
    for (stage, task), ops in found.items():
        start = min(op.start for op in ops)
        end = max(op.start + op.length for op in ops)
        made.append(Span(stage, task, ops[0].device, start, end - start))
    return sorted(made, key=lambda span: (span.start, span.stage))


@dataclass(frozen=True)
class Part:
    """What a stage would cost, by a trace of the whole model on one device.

    bytes is the most that its operations hold at once, and what lies there all the time.
    """

    layers: tuple[str, ...]
    seconds: float
    bytes: int
    crossing: int  # to the next stage and, as a gradient, back


@dataclass(frozen=True)
class Cut:
    """Where to cut a model, and what each stage would cost."""

    starts: tuple[str, ...]
    parts: tuple[Part, ...]

    def __repr__(self) -> str:
        seconds = " and ".join(f"{part.seconds * 1e3:.0f}" for part in self.parts)
        sizes = " and ".join(f"{part.bytes / 1e6:.0f}" for part in self.parts)
        crosses = "".join(f", {size_text(p.crossing)} cross" for p in self.parts[:-1])
        where = ", ".join(self.starts)
        return f"cut before {where}: {seconds} ms, {sizes} MB{crosses}" if where else "not cut"


def cuts(
    trace: Trace, layers: Sequence[str], stages: int, held: Mapping[str, int] | None = None
) -> list[Cut]:
    """List every cut of a model into so many stages, with its costs by a trace of it uncut.

    `layers` are the name scopes that may begin a stage, in order; what runs outside of them belongs
    to the layer whose results it uses, and to none if it uses none. `held` are bytes by layer that
    lie there all the time: weights and slots.
    """
    stages, layers = whole("stages", stages, "a number of stages", 1), list(layers)
    if stages > len(layers):
        raise ValueError(
            f"{counted(stages, 'stage')} cannot be cut from {counted(len(layers), 'layer')}: ask "
            f"for {len(layers)} or fewer."
        )
    held = dict(held or {})
    if lost := [name for name in held if name not in layers]:
        raise ValueError(
            f"held has {lost[0]!r}, which is not one of the layers: use {', '.join(layers)}."
        )
    place, back = _places(trace, layers)
    seconds = [0.0] * len(layers)
    last: dict[str, int] = {}  # an operation on the way forward -> the last layer that uses it
    for maker, user in set(trace.edges) - set(trace.waits):
        if user in place and user not in back:
            last[maker] = max(place[user], last.get(maker, 0))
    crossing = [0] * len(layers)  # over the border in front of each layer
    for op in trace.ops:
        if op.name in place:
            seconds[place[op.name]] += op.length
            for border in range(place[op.name], last.get(op.name, 0)):
                crossing[border + 1] += 2 * op.bytes

    @functools.cache
    def part(a: int, b: int) -> Part:
        own = [x for x in trace.allocations if a <= place.get(x.op, -1) < b and not x.scratch]
        return Part(
            tuple(layers[a:b]),
            sum(seconds[a:b]),
            sum(held.get(layer, 0) for layer in layers[a:b]) + max(n for _, n in curve(own)),
            crossing[b] if b < len(layers) else 0,
        )

    found = []
    for inner in itertools.combinations(range(1, len(layers)), stages - 1):
        parts = tuple(part(a, b) for a, b in itertools.pairwise((0, *inner, len(layers))))
        found.append(Cut(tuple(layers[i] for i in inner), parts))
    return found


def best_cut(
    trace: Trace,
    devices: Sequence[str],
    layers: Sequence[str],
    *,
    by: str = "time",
    held: Mapping[str, int] | None = None,
) -> Cut:
    """Choose the cut over the devices by a trace of the model uncut; see `cuts`.

    By "time" the slowest stage is as fast as can be, by "memory" the largest as small; by "bytes"
    the least crosses.
    """
    costs: dict[str, Callable[[Cut], float]] = {
        "time": lambda cut: max(part.seconds for part in cut.parts),
        "memory": lambda cut: max(part.bytes for part in cut.parts),
        "bytes": lambda cut: sum(part.crossing for part in cut.parts),
    }
    if by not in costs:
        raise ValueError(f"by={by!r} is not a cost: use {', '.join(map(repr, costs))}.")
    return min(cuts(trace, layers, len(devices), held), key=costs[by])


def _places(trace: Trace, layers: Sequence[str]) -> tuple[dict[str, int], set[str]]:
    """Find the layer of each operation, by number; and what is on the way back or comes after it.

    A scope that is called like a layer says it. What has none is with the operations whose results
    it uses: on the way forward with the last of them, on the way back with the first.
    """
    makers: dict[str, list[str]] = {op.name: [] for op in trace.ops}
    loops = {op.name for op in trace.ops if op.type == "NextIteration"}
    for maker, user in set(trace.edges) - set(trace.waits):
        makers.setdefault(user, []).extend([] if maker in loops else [maker])
    numbers = {layer: i for i, layer in enumerate(layers)}
    place: dict[str, int] = {}
    back = set()
    for name in TopologicalSorter(makers).static_order():
        used = makers.get(name, [])
        if re.search(r"(^|/)gradient(s|_tape)(_\d+)?/", name) or not back.isdisjoint(used):
            back.add(name)
        found = [numbers[scope] for scope in name.split("/") if scope in numbers][:1]
        if found := found or [place[maker] for maker in used if maker in place]:
            place[name] = (min if name in back else max)(found)
    ran = {place.get(op.name) for op in trace.ops}
    if missing := [layer for i, layer in enumerate(layers) if i not in ran]:
        raise ValueError(
            f"no operation of the trace is in the scope {missing[0]!r}: trace the model uncut, "
            f"with a tf.name_scope for each of {', '.join(layers)}."
        )
    return place, back
