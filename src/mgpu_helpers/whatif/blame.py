"""Who waited for what: the time of each device in a step, accounted for."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from mgpu_helpers.names import order
from mgpu_helpers.trace.layers import layer
from mgpu_helpers.trace.step import Op, Trace, lanes, nanos, traced
from mgpu_helpers.whatif.account import COPY, CORE, OVERHEAD, Account, Explanation, Wait
from mgpu_helpers.whatif.model import CHEAP
from mgpu_helpers.whatif.work import Task, apart, met, on_cpu_threads, tasks_of, unknown

_SOON = 20_000  # nanoseconds; a thread that goes on after less was not free for others
_SMALL = 1e-3  # of a step; an operation that took less is not what a device waited to do
_IDLE = 0.05  # a host that worked less only hands out, and its waiting is nobody's trouble


def explain(step: Trace, layers: Collection[str] | None = None) -> Explanation:
    """Say of each device how much of the step it worked, and what it waited for meanwhile.

    From an operation that started late, go back to the input that came last, to what that one
    waited for (its input, or what its device did first), and so on. Each idle moment is then work
    elsewhere, a copy to or from a GPU, a free core, or overhead, which is what TensorFlow and the
    machine do besides. A collective, such as an all-reduce, is work from the moment when the last
    of its devices comes; the others wait for what that one did before. What is named is the slow
    part, not the reason for it, and its share is not what a faster one would gain: see `faster` for
    that. A host that worked less than 5 % is left out. For layers see `Trace.top`. It says so where
    the trace does not tell.

    >>> from mgpu_helpers.trace import Op, Trace
    >>> two = Op("conv/Add", "Add", "/CPU:1", 0.0, 0.01), Op("b", "Add", "/CPU:2", 0.01, 0.01)
    >>> explain(Trace(two, (), {}, (("conv/Add", "b"),)))
    /CPU:1 worked 50 % of 20.0 ms; it waited 50 % for b (Add) on /CPU:2.
    /CPU:2 worked 50 % of 20.0 ms; it waited 50 % for conv (Add) on /CPU:1.
    """
    notes, length = tuple(_nothing(traced(step))), step.length
    if step.launches_only or not length:
        return Explanation((), (*notes, f"No more can be said: {unknown(step)}."))
    if said := unknown(step):
        found = [Account(d, length, step.busy(d), None) for d in _asked(step)]
        return Explanation(tuple(found), (*notes, f"What they waited for is not known: {said}."))
    notes += tuple(_not_told(step))
    tasks, whole = tasks_of(step), nanos(length)
    inputs, full = _inputs(tasks), _full(step)
    causes = _causes(tasks, inputs)
    ran = [i for i, task in enumerate(tasks) if task.type]
    last = max(ran, key=lambda i: tasks[i].end)
    accounts = []
    for device in _asked(step):
        mine = sorted((i for i in ran if tasks[i].device == device), key=lambda i: tasks[i].start)
        work = _Spans([(nanos(tasks[i].start), nanos(tasks[i].end)) for i in mine])
        waited: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        reached = 0  # nanoseconds, of which nothing is left over
        # What takes next to nothing may run at any time: what the device waited for is the input
        # of the next operation that matters.
        large = [i for i in mine if tasks[i].seconds >= _SMALL * length]
        for i in [*large, None]:
            end = whole if i is None else nanos(tasks[i].start)
            for start, until, cause in _back(
                tasks, causes, i, last if i is None else inputs[i], reached, end
            ):
                idle = until - start - work.within(start, until)
                if isinstance(cause, int):
                    task = tasks[cause]
                    waited[_label(task, layers), task.device][task.type] += idle
                else:
                    busy = min(idle, full.within(start, until))
                    waited[CORE, ""][""] += busy
                    waited[cause, ""][""] += idle - busy
            reached = max(reached, end if i is None else nanos(tasks[i].end))
        waits = [
            Wait(what, where, sum(types.values()) / 1e9, max(types, key=types.__getitem__))
            for (what, where), types in waited.items() if any(types.values())
        ]  # fmt: skip
        waits.sort(key=lambda wait: (-wait.seconds, wait.what))
        worked = whole - sum(sum(types.values()) for types in waited.values())
        accounts.append(Account(device, length, worked / 1e9, tuple(waits)))
    return Explanation(tuple(accounts), notes)


def _back(
    tasks: Sequence[Task], causes: Sequence[int], i: int | None, cause: int,
    start: int, end: int,
) -> Iterator[tuple[int, int, int | str]]:  # fmt: skip
    """Go back from a task's start, or from the end of a step, to where a wait began.

    Give spans of time in ns, and the operation that ran in each, or what passed between operations.
    """
    at = end
    while at > start:
        ready = start if cause < 0 else min(at, max(start, nanos(tasks[cause].end)))
        if at > ready:  # all was there
            crossed = False
            if i is not None and cause >= 0:
                here, there = tasks[i].device, tasks[cause].device
                crossed = "/GPU" in here + there and (here != there or bool(tasks[cause].together))
            yield ready, at, COPY if crossed else OVERHEAD
        if cause < 0:
            return
        at = min(ready, max(start, nanos(tasks[cause].start)))
        if ready > at:
            yield at, ready, cause
        i, cause = cause, causes[cause]


def _inputs(tasks: Sequence[Task]) -> list[int]:
    """Find for each task which operation gave its last input; -1 where there is none."""
    found: list[int] = []
    for task in tasks:
        makers = [j if tasks[j].type else found[j] for j in task.before]
        ended = [j for j in makers if j >= 0]
        found.append(max(ended, key=lambda j: tasks[j].end, default=-1))
    return found


def _causes(tasks: Sequence[Task], inputs: Sequence[int]) -> list[int]:
    """Find for each task its last input, or what its device did meanwhile, if that ended later."""
    done: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for i, task in enumerate(tasks):
        if task.seconds >= CHEAP:
            done[task.device].append((nanos(task.end), i))
    for ends in done.values():
        ends.sort()
    causes = list(inputs)
    for i, task in enumerate(tasks):
        ends = done[task.device]
        at = bisect_right(ends, (nanos(task.start), len(tasks))) - 1
        if at >= 0 and ends[at][1] != i and (
            causes[i] < 0 or ends[at][0] > nanos(tasks[causes[i]].end)
        ):  # fmt: skip
            causes[i] = ends[at][1]
    return causes


class _Spans:
    """How long at least so many of some spans of time overlap, in whole nanoseconds."""

    def __init__(self, spans: Iterable[tuple[int, int]], least: int = 1) -> None:
        self.moments, self.totals, self.on, now = [0], [0], [False], 0
        changes = [change for a, b in spans for change in ((a, 1), (b, -1))]
        for moment, change in sorted(changes):
            self.totals.append(self._until(moment))
            self.moments.append(moment)
            now += change
            self.on.append(now >= least)

    def _until(self, moment: int) -> int:
        i = bisect_right(self.moments, moment) - 1
        return self.totals[i] + self.on[i] * (moment - self.moments[i])

    def within(self, start: int, end: int) -> int:
        return self._until(end) - self._until(start)


def _full(step: Trace) -> _Spans:
    """Find when every thread that the trace knows of worked, or went on at once."""
    threads, spans = lanes(on_cpu_threads(step)), []
    for thread in threads:
        for op, after in zip(thread, [*thread[1:], None], strict=True):
            end, then = nanos(op.end), nanos(after.start) if after else 0
            spans.append((nanos(op.start), then if after and then - end < _SOON else end))
    return _Spans(spans, max(1, len(threads)))


def _label(task: Task, layers: Collection[str] | None) -> str:
    """Name a task of a pipeline, else the layer, else the operation itself."""
    from mgpu_helpers.pipeline.tasks import task_of

    if at := task_of(Op(task.name, task.type, task.device, 0.0, 0.0)):
        return f"stage_{at[0]}/{at[1]}"
    found = layer(task.name, layers)
    return task.name if found == "other" else found


def _asked(step: Trace) -> list[str]:
    """List the devices to speak of: all, less a host that did next to nothing beside others."""
    return [
        device for device in step.devices
        if device != "/CPU:0" or len(step.devices) == 1 or 1 - step.idle(device) >= _IDLE
    ]  # fmt: skip


def _not_told(step: Trace) -> list[str]:
    """Say of which collectives the waiting, or the work, is not known."""
    said = []
    if kinds := apart(step):
        said.append(
            f"How long devices waited for each other in collectives ({kinds}) is not known: the "
            "trace does not tell which of them belong together, so all of it counts as work."
        )
    known = met(step)
    if timeless := {c.device for c in step.collectives if c.op in known and not c.length}:
        said.append(
            f"How long collectives worked on {', '.join(sorted(timeless, key=order))} is not "
            "known: NCCL's kernels do not say of which operation they are, so what passed between "
            "the last device's coming and the next operation counts as copies."
        )
    return said


def _nothing(step: Trace) -> list[str]:
    """Say which devices of the plan ran nothing, where the step ran on some of its devices."""
    from mgpu_helpers.devices.plan import current

    plan = current()
    if plan is None or not set(step.devices) <= {plan.host, *plan.devices}:
        return []
    idle = [device for device in plan.devices if device not in step.devices]
    return [f"{device} ran nothing: no operation was placed there." for device in idle]
