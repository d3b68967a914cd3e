"""Who waited for what: the time of each device in a step, accounted for."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mgpu_helpers.trace.layers import layer
from mgpu_helpers.trace.step import Op, Trace
from mgpu_helpers.whatif.work import Task, tasks_of, threads_of, unknown

COPY, CORE, OVERHEAD = "copies", "no free core", "overhead"
_SHOWN = 3  # what a device waited for, by name


@dataclass(frozen=True)
class Wait:
    """What a device waited for, and how long in seconds.

    what is a layer or a task of a pipeline, and type the operation in it that took most of this;
    or what is `COPY`, `CORE` or `OVERHEAD`, and device is "".
    """

    what: str
    device: str
    seconds: float
    type: str = ""

    def __str__(self) -> str:
        most = f" ({self.type})" if self.type not in ("", self.what) else ""
        return self.what + most + (f" on {self.device}" if self.device else "")


@dataclass(frozen=True)
class Account:
    """Where the seconds of a step went on one device; waits is None where no trace can say."""

    device: str
    length: float
    worked: float
    waits: tuple[Wait, ...] | None = ()

    def __str__(self) -> str:
        whole = f"{self.device} worked {{}} of {self.length * 1e3:.1f} ms"
        if self.waits is None:
            return whole.format(f"{self.worked / self.length:.0%}") + "."
        named = [wait for wait in self.waits if wait.device]
        shown, rest = named[:_SHOWN], named[_SHOWN:]
        others = [Wait(f"{len(rest)} others", "", sum(wait.seconds for wait in rest))] * bool(rest)
        parts = [*shown, *others, *(wait for wait in self.waits if not wait.device)]
        worked, *shares = _percent([self.worked, *(wait.seconds for wait in parts)])
        said = [f"{n} % for {wait}" for n, wait in zip(shares, parts, strict=True) if n]
        tail = f"; it waited {', '.join(said)}" if said else ""
        return whole.format(f"{worked} %") + tail + "."


@dataclass(frozen=True, repr=False)
class Explanation:
    """An account of each device, and sentences on what nothing ran on or cannot be known."""

    accounts: tuple[Account, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "\n".join([*map(str, self.accounts), *self.notes])


def explain(step: Trace, layers: Collection[str] | None = None) -> Explanation:
    """Say of each device how much of the step it worked, and what it waited for meanwhile.

    From an operation that started late, go back to the input that came last, to what that one
    waited for, and so on: each idle moment is then work elsewhere, a copy to or from a GPU, no free
    core, or overhead, which is what TensorFlow and the machine do besides. What is named is the
    slow part, not the reason for it, and its share is not what a faster one would gain: see
    `faster` for that. For layers see `Trace.top`. It says so where the trace does not tell.

    >>> from mgpu_helpers.trace import Op, Trace
    >>> two = Op("conv/Add", "Add", "/CPU:1", 0.0, 0.01), Op("b", "Add", "/CPU:2", 0.01, 0.01)
    >>> explain(Trace(two, (), {}, (("conv/Add", "b"),)))
    /CPU:1 worked 50 % of 20.0 ms; it waited 50 % for b (Add) on /CPU:2.
    /CPU:2 worked 50 % of 20.0 ms; it waited 50 % for conv (Add) on /CPU:1.
    """
    notes = list(_nothing(step))
    if step.launches_only or not step.length:
        return Explanation((), (*notes, f"No more can be said: {unknown(step)}."))
    if said := unknown(step):
        found = [Account(d, step.length, step.busy(d), None) for d in step.devices]
        return Explanation(tuple(found), (*notes, f"What they waited for is not known: {said}."))
    tasks, full = tasks_of(step), _Full(step)
    causes = _causes(tasks)
    by_device: dict[str, list[int]] = defaultdict(list)
    for i, task in enumerate(tasks):
        if task.type:
            by_device[task.device].append(i)
    last = max((i for i, task in enumerate(tasks) if task.type), key=lambda i: tasks[i].end)
    accounts = []
    for device in step.devices:
        waited: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
        reached = 0.0
        mine = sorted(by_device[device], key=lambda i: tasks[i].start)
        for i in [*mine, None]:
            end = step.length if i is None else tasks[i].start
            if end > reached:
                _walk(tasks, causes, full, i, last, reached, end, waited, layers)
            if i is not None:
                reached = max(reached, tasks[i].end)
        waits = [
            Wait(what, where, sum(types.values()), max(types, key=types.__getitem__))
            for (what, where), types in waited.items()
        ]
        waits.sort(key=lambda wait: (-wait.seconds, wait.what))
        worked = step.length - sum(wait.seconds for wait in waits)
        accounts.append(Account(device, step.length, worked, tuple(waits)))
    return Explanation(tuple(accounts), tuple(notes))


def _walk(
    tasks: Sequence[Task], causes: Sequence[int], full: _Full, i: int | None, last: int,
    start: float, end: float, waited: dict[tuple[str, str], dict[str, float]],
    layers: Collection[str] | None,
) -> None:  # fmt: skip
    """Go back from the start of a task, or from the end of the step, to where a wait began."""
    at, cause = end, last if i is None else causes[i]
    while at > start:
        ready = start if cause < 0 else min(at, max(start, tasks[cause].end))
        if at > ready:  # all was there
            busy = full.within(ready, at)
            crossed = i is not None and cause >= 0 and tasks[i].device != tasks[cause].device
            gpu = crossed and "/GPU" in tasks[i].device + tasks[cause].device
            waited[CORE, ""][""] += busy
            waited[COPY if gpu else OVERHEAD, ""][""] += at - ready - busy
        if cause < 0:
            return
        task, at = tasks[cause], min(ready, max(start, tasks[cause].start))
        if ready > at:
            waited[_label(task, layers), task.device][task.type] += ready - at
        i, cause = cause, causes[cause]


def _causes(tasks: Sequence[Task]) -> list[int]:
    """Find for each task the operation whose end it waited for; -1 where there is none."""
    causes: list[int] = []
    for task in tasks:
        makers = [j if tasks[j].type else causes[j] for j in task.before]
        ended = [j for j in makers if j >= 0]
        causes.append(max(ended, key=lambda j: tasks[j].end, default=-1))
    return causes


class _Full:
    """The time in which as many operations ran on CPUs as there are threads."""

    def __init__(self, step: Trace) -> None:
        threads, now = threads_of(step), 0
        self.moments, self.totals, self.on = [0.0], [0.0], [False]
        ops = [op for op in step.ops if op.device.startswith("/CPU")]
        changes = [(op.start, 1) for op in ops] + [(op.start + op.length, -1) for op in ops]
        for moment, change in sorted(changes):
            self.totals.append(self._until(moment))
            self.moments.append(moment)
            now += change
            self.on.append(now >= threads)

    def _until(self, moment: float) -> float:
        i = bisect_right(self.moments, moment) - 1
        return self.totals[i] + self.on[i] * (moment - self.moments[i])

    def within(self, start: float, end: float) -> float:
        return min(end - start, max(0.0, self._until(end) - self._until(start)))


def _label(task: Task, layers: Collection[str] | None) -> str:
    """Name a task of a pipeline, else the layer, else the operation itself."""
    from mgpu_helpers.pipeline.spans import task_of

    if at := task_of(Op(task.name, task.type, task.device, 0.0, 0.0)):
        return f"stage_{at[0]}/{at[1]}"
    found = layer(task.name, layers)
    return task.name if found == "other" else found


def _nothing(step: Trace) -> list[str]:
    """Say which devices of the plan ran nothing, where the step ran on some of its devices."""
    from mgpu_helpers.devices.plan import current

    plan = current()
    if plan is None or not set(step.devices) <= {plan.host, *plan.devices}:
        return []
    idle = [device for device in plan.devices if device not in step.devices]
    return [f"{device} ran nothing: no operation was placed there." for device in idle]


def _percent(parts: Sequence[float]) -> list[int]:
    """Round shares to whole percent that add up to 100."""
    whole = sum(parts) or 1.0
    exact = [100 * part / whole for part in parts]
    found = [int(share) for share in exact]
    for i in sorted(range(len(exact)), key=lambda i: found[i] - exact[i])[: 100 - sum(found)]:
        found[i] += 1
    return found
