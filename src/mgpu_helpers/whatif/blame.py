"""Who waited for what: the time of each device in a step, accounted for."""

from __future__ import annotations

import itertools
import textwrap
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from mgpu_helpers._formatting import counted
from mgpu_helpers._names import order
from mgpu_helpers.trace.layers import layer
from mgpu_helpers.trace.records import lanes, nanos, overlap
from mgpu_helpers.trace.step import Trace, traced
from mgpu_helpers.whatif.model import CHEAP
from mgpu_helpers.whatif.work import Task, apart, met, on_cpu_threads, tasks_of, unknown

COPY, CORE, OVERHEAD = "copies", "a free core", "overhead"
_SHOWN = 3  # what a device waited for, by name
_WIDTH = 100  # letters; notebooks break what is longer in the middle of a word
_SOON = 20_000  # nanoseconds; a thread that goes on after less was not free for others
_SMALL = 1e-3  # of a step; an operation that took less is not what a device waited to do
_IDLE = 0.05  # a host that worked less only hands out, and its waiting is nobody's trouble


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
            return whole.format(f"{100 * self.worked / self.length:.0f} %") + "."
        named = [wait for wait in self.waits if wait.device]
        shown, rest = named[:_SHOWN], named[_SHOWN:]
        more = []
        for device in dict.fromkeys(wait.device for wait in rest):
            there = [wait.seconds for wait in rest if wait.device == device]
            more.append(Wait(counted(len(there), "other"), device, sum(there)))
        parts = [*shown, *more, *(wait for wait in self.waits if not wait.device)]
        worked, *shares = _percent([self.worked, *(wait.seconds for wait in parts)])
        waited = [f"{n} % for {wait}" for n, wait in zip(shares, parts, strict=True) if n]
        tail = f"; it waited {', '.join(waited)}" if waited else ""
        return whole.format(f"{worked} %") + tail + "."


@dataclass(frozen=True, repr=False)
class Explanation:
    """An account of each device, and sentences on what nothing ran on or cannot be known."""

    accounts: tuple[Account, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        said = "\n".join([*map(str, self.accounts), *self.notes]).replace(" %", "\xa0%")
        wrap = textwrap.TextWrapper(_WIDTH, subsequent_indent="    ", break_on_hyphens=False)
        return "\n".join(map(wrap.fill, said.splitlines())).replace("\xa0", " ")


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
    if why := unknown(step):
        timeless = step.launches_only or not length
        known = () if timeless else (Account(d, length, step.busy(d), None) for d in _asked(step))
        return Explanation(tuple(known), (*notes, f"What devices waited for is not known: {why}."))
    tasks, whole = tasks_of(step), nanos(length)
    inputs, full = _inputs(tasks), _full(step)
    causes = _causes(tasks, inputs)
    ran = [i for i, task in enumerate(tasks) if task.type]
    last = max(ran, key=lambda i: tasks[i].end)
    accounts = []
    for device in _asked(step):
        mine = sorted((i for i in ran if tasks[i].device == device), key=lambda i: tasks[i].start)
        working = overlap((tasks[i].start, tasks[i].end) for i in mine)
        waited: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        reached = 0  # nanoseconds, of which nothing is left over
        # What takes next to nothing may run at any time: what the device waited for is the input
        # of the next operation that matters.
        large = [i for i in mine if tasks[i].length >= _SMALL * length]
        for i in [*large, None]:
            end, cause = (whole, last) if i is None else (nanos(tasks[i].start), inputs[i])
            for start, until, what in _back(tasks, causes, i, cause, reached, end):
                idle = until - start - working(start, until)
                if isinstance(what, Task):
                    waited[_label(what, layers), what.device][what.type] += idle
                else:
                    busy = min(idle, full(start, until))
                    waited[CORE, ""][""] += busy
                    waited[what, ""][""] += idle - busy
            reached = max(reached, end if i is None else nanos(tasks[i].end))
        if device in step.kernels:  # of which an operation has several, and between them nothing
            idle = sum(types.total() for types in waited.values())
            waited[OVERHEAD, ""][""] += max(0, whole - idle - nanos(step.busy(device)))
        waits = [
            Wait(what, where, types.total() / 1e9, types.most_common(1)[0][0])
            for (what, where), types in waited.items() if types.total()
        ]  # fmt: skip
        waits.sort(key=lambda wait: (-wait.seconds, wait.what))
        worked = whole - sum(types.total() for types in waited.values())
        accounts.append(Account(device, length, worked / 1e9, tuple(waits)))
    return Explanation(tuple(accounts), (*notes, *_not_told(step)))


def _back(
    tasks: Sequence[Task], causes: Sequence[int], i: int | None, cause: int, start: int, end: int
) -> Iterator[tuple[int, int, Task | str]]:
    """Go back from a task's start, or from the end of a step, to where a wait began.

    Give spans of time in ns, and the task that ran in each, or what passed between tasks.
    """
    while end > start and cause >= 0:
        maker, user = tasks[cause], None if i is None else tasks[i]
        ready = min(end, max(start, nanos(maker.end)))
        yield ready, end, _passed(maker, user)
        end = min(ready, max(start, nanos(maker.start)))
        yield end, ready, maker
        i, cause = cause, causes[cause]
    yield start, max(start, end), OVERHEAD


def _passed(maker: Task, user: Task | None) -> str:
    """Name what passes between a task and the one that it made ready; None is the step's end."""
    if user is None or "/GPU" not in maker.device + user.device:
        return OVERHEAD
    return COPY if maker.device != user.device or maker.together else OVERHEAD


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
    for end, i in sorted((nanos(task.end), i) for i, task in enumerate(tasks)):
        if tasks[i].length >= CHEAP:
            done[tasks[i].device].append((end, i))
    causes = list(inputs)
    for i, task in enumerate(tasks):
        ends = done[task.device]
        at = bisect_right(ends, (nanos(task.start), len(tasks))) - 1
        if at >= 0 and ends[at][1] != i and (
            causes[i] < 0 or ends[at][0] > nanos(tasks[causes[i]].end)
        ):  # fmt: skip
            causes[i] = ends[at][1]
    return causes


def _full(step: Trace) -> Callable[[int, int], int]:
    """Find when every thread that the trace knows of worked, or went on at once."""
    threads, spans = lanes(on_cpu_threads(step)), []
    for thread in threads:
        for op, after in itertools.zip_longest(thread, thread[1:]):
            at_once = after and nanos(after.start) - nanos(op.end) < _SOON
            spans.append((op.start, after.start if at_once else op.end))
    return overlap(spans, max(1, len(threads)))


def _label(task: Task, layers: Collection[str] | None) -> str:
    """Name a task of a pipeline, else the layer, else the operation itself."""
    from mgpu_helpers.pipeline.tasks import task_of

    if at := task_of(task):
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

    plan, ran = current(), set(step.devices)
    idle = plan.devices if plan and ran <= {plan.host, *plan.devices} else ()
    return [f"{d} ran nothing: no operation was placed there." for d in idle if d not in ran]


def _percent(parts: Sequence[float]) -> list[int]:
    """Round shares to whole percent that add up to 100."""
    whole = sum(parts) or 1.0
    exact = [100 * part / whole for part in parts]
    found = [int(share) for share in exact]
    for i in sorted(range(len(exact)), key=lambda i: found[i] - exact[i])[: 100 - sum(found)]:
        found[i] += 1
    return found
