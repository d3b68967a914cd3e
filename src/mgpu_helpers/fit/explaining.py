"""Say where the time of `fit` goes, by running it again without each thing that costs time."""

from __future__ import annotations

import functools
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from mgpu_helpers._formatting import error_line, table, whole_number
from mgpu_helpers._given import first_batch
from mgpu_helpers._later import keras, tf
from mgpu_helpers._models import instead, ready
from mgpu_helpers.devices.plan import current
from mgpu_helpers.trace.fit import build

BARE = "the step itself"
REMEDIES = {
    "input": "cache() what fits, give map num_parallel_calls, end with prefetch(tf.data.AUTOTUNE)",
    "new shapes": "give all batches one shape: drop_remainder=True, pad to few lengths",
    "callbacks": "do less in on_train_batch_begin and _end, or act at every hundredth",
    "metrics": "compute the dear ones in validation only",
    "run_eagerly": "compile without it, once the step is debugged",
    BARE: "whatif.explain(trace.fit_step(model, data))",
}


@dataclass(frozen=True)
class Cost:
    """What one thing adds to each step of `fit`."""

    name: str
    seconds: float  # of a step; without it a step takes that much less
    remedy: str


@dataclass(frozen=True)
class Explanation:
    """What `explain` measured. Printed it is a table, with what each remedy would leave."""

    step: float  # seconds of a step, as fit runs it now
    costs: list[Cost]  # the dearest first; what cannot be told from noise is left out
    first: float  # seconds until the first step has ended: building, tracing, compiling
    between: float  # seconds that fit spends between two passes
    notes: list[str]

    def __str__(self) -> str:
        """Lay out the costs, the dearest first."""
        head = f"a step of fit takes {1e3 * self.step:.3g} ms."
        rows = [("costs", "ms a step", "without it", "what to do")]
        for cost in self.costs:
            without = f"{1e3 * (self.step - cost.seconds):.3g} ms" if cost.name != BARE else ""
            rows.append((cost.name, f"{1e3 * cost.seconds:.3g}", without, cost.remedy))
        return "\n".join([head, *table(rows), *self.notes])

    __repr__ = __str__


def explain(
    model: Any, data: Any, *, callbacks: Sequence[Any] = (), steps: int = 20
) -> Explanation:
    """Run `model.fit(data)` as it is, and without its input, callbacks and metrics; compare.

    data is what fit takes, or one batch (x, y) as a tuple, which has no input to leave out. Each
    way takes three passes of so many steps, the first to warm up. Callbacks run as in a training,
    so what they write is written; the weights and the optimizer's variables are put back. All costs
    are differences of times, so run it on a machine that does nothing else.

    >>> import keras
    >>> model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    >>> model.compile("sgd", "mse")
    >>> explain(model, (np.ones([8, 3], "f"), np.ones([8, 2], "f")), steps=4)
    a step of fit takes ... ms...
    """
    ready(model, built=False, compiled=True, single=False)
    steps = whole_number("steps", steps, "a number of steps", 4)
    batch, notes = first_batch(data), []
    without: dict[str, float] = {}  # seconds of a step without each
    with model.distribute_strategy.scope():
        build(model, batch)
        if not model.built:  # as its first step would, with a train_step of its own
            model(keras.utils.unpack_x_y_sample_weight(batch)[0])
        model.optimizer.build(model.trainable_variables)
    with _as_it_was(model):
        now = _Run(model, data, callbacks, steps)
        if not isinstance(data, tuple):  # a batch in memory is no input to wait for
            shapes = now.traces > 3 or (model.jit_compile is True and _shapes_differ(data))
            known = _Run(model, batch, callbacks, steps)
            without["new shapes" if shapes else "input"] = known.step
        if callbacks:
            without["callbacks"] = _Run(model, data, (), steps).step
        eager = model.run_eagerly
        try:
            if eager:
                model.run_eagerly = False
                try:
                    without["run_eagerly"] = _Run(model, data, callbacks, steps).step
                except Exception as error:
                    notes.append(f"Without run_eagerly the step fails: {error_line(error)}")
                model.run_eagerly = True
            with instead(model, compute_metrics=lambda *_, **__: {"loss": 0.0}):
                if any(type(metric) is not keras.metrics.Mean for metric in model.metrics):
                    without["metrics"] = _Run(model, data, callbacks, steps).step
                model.run_eagerly = eager and "run_eagerly" not in without  # else it counts twice
                bare = _Run(model, batch, (), steps).step
        finally:
            model.run_eagerly = eager
        again = _Run(model, data, callbacks, steps).step
    step, noise = min(now.step, again), abs(now.step - again)
    costs = [
        cost for name, seconds in without.items() if step - seconds > max(0.05 * step, noise)
        for cost in _costs(name, step - seconds, now.in_steps)
    ]  # fmt: skip
    costs.append(Cost(BARE, bare, REMEDIES[BARE]))
    costs.sort(key=lambda cost: -cost.seconds)
    if (plan := current()) and plan.on_gpus and not (model.jit_compile or eager):
        notes.append(
            "It ran without XLA, with which Keras compiles on a GPU unless it is told otherwise, "
            "and which several GPUs may have, too: try model.compile(..., jit_compile=True)."
        )
    if now.traces > 3:
        notes.append(f"The step was traced {now.traces} times in {PASSES * steps} steps.")
    notes += [
        f"{name} takes {1e3 * seconds / PASSES:.0f} ms at the end of each pass."
        for name, seconds in now.at_ends.items() if seconds / PASSES > step
    ]  # fmt: skip
    if now.first > SLOW:
        notes.append(f"The first step took {now.first:.0f} s: building, tracing, compiling.")
    if now.between > max(2 * step, SLOW):
        notes.append(f"Between two passes fit spends {now.between:.0f} s.")
    if noise > 0.05 * step:
        notes.append(
            f"The same again took {1e3 * noise:.1f} ms more or less: what costs less is not listed."
        )
    return Explanation(step, costs, now.first, now.between, notes)


def _costs(name: str, seconds: float, of_callbacks: dict[str, float]) -> Iterator[Cost]:
    """Share out what callbacks cost together by the time that each took; leave out the least."""
    if name != "callbacks":
        yield Cost(name, seconds, REMEDIES[name])
        return
    whole = sum(of_callbacks.values())
    for callback, own in of_callbacks.items():
        if own > 0.05 * whole:
            yield Cost(f"callback {callback}", seconds * own / whole, REMEDIES[name])


def _shapes_differ(data: Any) -> bool:
    """Say whether a Dataset may give batches that differ in more than their size."""
    specs = tf.nest.flatten(getattr(data, "element_spec", ()))
    return any(
        None in (spec.shape.rank, *(spec.shape[1:] if spec.shape.rank else ())) for spec in specs
    )


PASSES = 3  # of each way: one to warm up, and of two the faster
SLOW = 3.0  # seconds outside of steps that are worth a note


class _Run:
    """Some passes of `fit`, timed but for the first."""

    def __init__(self, model: Any, data: Any, callbacks: Sequence[Any], steps: int) -> None:
        if isinstance(data, tuple):
            data = tf.data.Dataset.from_tensors(data).repeat(steps)
        elif isinstance(data, tf.data.Dataset):
            data = data.take(steps)
        self.traces = 0
        self.begun: list[list[tuple[float, int]]] = []  # (time, step) for each pass
        self.ended: list[float] = []
        self.in_steps: dict[str, float] = defaultdict(float)
        self.at_ends: dict[str, float] = defaultdict(float)
        original = model.train_step

        @functools.wraps(original)
        def counted(*batch: Any) -> Any:
            self.traces += not tf.executing_eagerly()
            return original(*batch)

        class Clock(keras.callbacks.Callback):
            def on_epoch_begin(_, epoch: int, logs: Any = None) -> None:
                self.begun.append([])

            def on_train_batch_begin(_, batch: int, logs: Any = None) -> None:
                self.begun[-1].append((time.perf_counter(), batch))

            def on_train_batch_end(_, batch: int, logs: Any = None) -> None:
                self.ended.append(time.perf_counter())

        plain = isinstance(data, tf.data.Dataset)
        limit: dict[str, Any] = {"shuffle": False} if plain else {"steps_per_epoch": steps}
        model.train_function = None
        start = time.perf_counter()
        with (instead(model, train_step=counted), self._timed(callbacks),
              warnings.catch_warnings(action="ignore", category=UserWarning)):  # of our few steps
            model.fit(data, epochs=PASSES, callbacks=[Clock(), *callbacks], verbose=0, **limit)
        if len(self.begun) < PASSES or min(map(len, self.begun)) < 3:
            raise ValueError(
                f"fit ended after {len(self.ended)} steps of {PASSES * steps}, too few to time: "
                "give more batches, and leave out callbacks that stop a training."
            )
        self.step = min(
            (until - since) / (last - first)
            for (since, first), *_, (until, last) in (begun[1:] for begun in self.begun[1:])
        )
        self.first = self.ended[0] - start
        end = self.ended[len(self.begun[0]) - 1]
        self.between = max(0.0, self.begun[1][1][0] - end - self.step)

    @contextmanager
    def _timed(self, callbacks: Sequence[Any]) -> Iterator[None]:
        """Count the seconds of each callback, in steps and at the ends of passes."""
        hooks = {
            "on_train_batch_begin": self.in_steps, "on_train_batch_end": self.in_steps,
            "on_epoch_begin": self.at_ends, "on_epoch_end": self.at_ends,
        }  # fmt: skip
        with ExitStack() as stack:
            for callback in callbacks:
                name = type(callback).__name__
                stack.enter_context(instead(callback, **{
                    hook: _clocked(getattr(callback, hook), seconds, name)
                    for hook, seconds in hooks.items()
                }))  # fmt: skip
            yield


def _clocked(
    method: Callable[..., None], seconds: dict[str, float], name: str
) -> Callable[..., None]:
    def timed(*arguments: Any, **named: Any) -> None:
        start = time.perf_counter()
        method(*arguments, **named)
        seconds[name] += time.perf_counter() - start

    return timed


@contextmanager
def _as_it_was(model: Any) -> Iterator[None]:
    """Put back what a training changes."""
    variables = list({id(v): v for v in [
        *model.variables, *model.optimizer.variables, *model.metrics_variables,
    ]}.values())  # fmt: skip
    values = [v.numpy() for v in variables]
    names = ["train_function", "history", "stop_training"]
    kept = {name: getattr(model, name, None) for name in names}
    try:
        yield
    finally:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        for name, value in kept.items():
            setattr(model, name, value)
