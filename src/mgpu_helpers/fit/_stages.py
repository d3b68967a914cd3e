"""One call of a Keras model in stages: its tasks, a piece of the batch in a stage each."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._models import run_calls
from mgpu_helpers._train import home_of, read
from mgpu_helpers.pipeline.tasks import stream
from mgpu_helpers.towers.averages import total
from mgpu_helpers.towers.gradients import as_alone


@dataclass(frozen=True, eq=False)
class Stage:
    """A device with the calls of layers that run there, and what goes in and comes out."""

    device: str
    calls: Sequence[Any]
    variables: Sequence[Any]
    takes: Sequence[int]  # by the `id` of Keras's tensors: what earlier stages made, and inputs
    gives: Set[int]  # what later stages take, and outputs


class Run:
    """The tasks of one call, forward and back, with what they leave for each other."""

    def __init__(self, stages: Sequence[Stage], trained: Sequence[Any], training: Any) -> None:
        import tensorflow as tf

        self.stages, self.training = stages, training
        self.trained = {id(v) for v in trained}
        self.values: list[dict[int, Any]] = []  # of the variables, by stage
        self.state: dict[int, tuple[Any, Any]] = {}  # what pieces change, with its value now
        self.losses: dict[tuple[int, int], list[Any]] = {}
        self.made: dict[tuple[int, int], list[Any]] = {}
        self.taken: dict[tuple[int, int], list[tuple[Any, Any]]] = {}  # what came, and its copy
        self.slopes: dict[Any, list[Any]] = defaultdict(list)  # by what they are slopes for
        self.of_weights: dict[tuple[int, int], Any] = {}  # by the variable's `id` and the stage
        self.crossing: set[Any] = set()  # what a stage made
        self.tasks: dict[int, list[list[Any]]] = defaultdict(list)
        for s, stage in enumerate(stages):
            scope = tf.name_scope(f"stage_{s}")
            with tf.device(stage.device), scope, _private.without_autocast():
                self.values.append(read({id(v): v for v in stage.variables}))

    @contextlib.contextmanager
    def _task(self, s: int, name: str) -> Iterator[list[Any]]:
        """Place and name what is made in the block, and keep its operations as a task."""
        import tensorflow as tf

        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        before = len(graph.get_operations()) if graph else 0
        results: list[Any] = []  # what a way back is for
        with tf.device(self.stages[s].device), tf.name_scope(f"stage_{s}/{name}"):
            yield results
        if graph:
            made = graph.get_operations()[before:]
            self.tasks[s].append(made if name[0] == "F" else _leading_to(results, made))

    def in_order(self) -> None:
        """Let each device do its tasks in their order, one after the other."""
        for tasks in self.tasks.values():
            stream(tasks)
        self.tasks.clear()

    def forward(self, s: int, k: int, values: dict[int, Any], size: Any) -> None:
        """Run a stage on piece k, of so many examples; values get what it gives."""
        import keras
        import tensorflow as tf

        stage = self.stages[s]
        with self._task(s, f"F{k}"):
            self.taken[s, k] = [(values[key], _copy(values[key])) for key in stage.takes]
            own = dict(zip(stage.takes, (x for _, x in self.taken[s, k]), strict=True))
            now = [self.state.get(id(v), (v, self.values[s][id(v)]))[1] for v in stage.variables]
            pairs = list(zip(stage.variables, now, strict=True))
            with _private.without_autocast():
                scope = keras.StatelessScope(pairs, collect_losses=True)
            with scope:
                own = run_calls(stage.calls, own, self.training)
            for variable, before in pairs:
                value = scope.get_current_value(variable)
                if value is not before:
                    if id(variable) in self.trained:
                        raise ValueError(
                            f"a layer assigns its weight {variable.path!r} when it is called, "
                            "which a stage cannot do: take this layer out of the model."
                        )
                    # In place of a piece without examples stands an example of another one.
                    if k and tf.is_tensor(size):
                        value = tf.where(size > 0, value, before)
                    elif not tf.is_tensor(size) and not size:
                        continue
                    self.state[id(variable)] = variable, value
        if len(scope.state_mapping) > len(pairs):
            raise ValueError(
                f"a layer from {stage.calls[0].operation.name} on changes a variable that is none "
                "of its own, such as Keras's seed of all layers: give the layer a seed."
            )
        values |= {key: own[key] for key in stage.gives}
        self.losses[s, k] = list(scope.losses)
        self.crossing |= {own[key].ref() for key in stage.gives}
        gives = [own[key] for key in stage.gives]
        self.made[s, k] = [*gives, *_logits_of(gives), *scope.losses]

    def finish(self) -> None:
        """Order the tasks of the forward pass, and assign what layers changed."""
        self.in_order()
        with _private.without_autocast():
            for variable, value in self.state.values():
                variable.assign(value)

    def begin(self, ends: Sequence[Any], by: Sequence[Any], starts: Sequence[Any]) -> None:
        """Find from the gradients of what was joined those of the pieces, where these are."""
        starts = [x for x in (*starts, *_logits_of(starts)) if x.dtype.is_floating]
        for x, slope in zip(starts, _gradients(ends, starts, by, starts), strict=True):
            if slope is not None:
                self.slopes[x.ref()] = [slope]  # the same again for an output that is there twice

    def backward(self, s: int, k: int) -> None:
        """Go back through a stage with piece k."""
        stage = self.stages[s]
        made = list({x.ref(): x for x in self.made[s, k] if x.ref() in self.slopes}.values())
        if not made:
            return
        weights = [v for v in stage.variables if id(v) in self.trained]
        taken = [(x, copy) for x, copy in self.taken[s, k] if copy.dtype.is_floating]
        wanted = [*(self.values[s][id(v)] for v in weights), *(copy for _, copy in taken)]
        with self._task(s, f"B{k}") as results:
            by = [total([[slope] for slope in self.slopes[x.ref()]])[0] for x in made]
            found = _gradients(made, wanted, by)
            for v, slope in zip(weights, found, strict=False):
                if slope is not None:
                    sofar = self.of_weights.get((id(v), s))
                    self.of_weights[id(v), s] = total([[sofar], [slope]])[0]
                    results.append(self.of_weights[id(v), s])
            for (x, _), slope in zip(taken, found[len(weights) :], strict=True):
                if slope is not None:
                    self.slopes[x.ref()].append(slope)
                    if x.ref() in self.crossing:
                        results.append(slope)

    def found(self, trained: Sequence[Any]) -> list[Any]:
        """Give the gradients of the weights, each where its weight is."""
        import tensorflow as tf

        found = []
        for v in trained:
            each = [[g] for (key, _), g in self.of_weights.items() if key == id(v)]
            with tf.device(home_of([v])):
                slope = total(each)[0] if each else None
                found.append(as_alone(slope, *(g for (g,) in each)))
        return found

    def found_of(self, xs: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """Give the gradients of what the model was called with."""
        reached = [x for x in inputs if x.ref() in self.slopes]
        by = [total([[slope] for slope in self.slopes[x.ref()]])[0] for x in reached]
        return _gradients(reached, xs, by) if reached else [None] * len(xs)


def _copy(x: Any) -> Any:
    import tensorflow as tf

    copy = tf.identity(x)
    if (mask := _private.mask_of(x)) is not None:
        _private.set_mask(copy, mask)
    return copy


def _logits_of(xs: Sequence[Any]) -> list[Any]:
    """List what a softmax or sigmoid has made some of these tensors of, which losses take."""
    return [made_of for x in xs if (made_of := _private.logits_of(x)) is not None]


def _gradients(
    ys: Sequence[Any], xs: Sequence[Any], by: Sequence[Any], stop: Sequence[Any] | None = None
) -> list[Any]:
    """Give the gradients of ys for each of xs, where ys were made, and not through those of stop.

    So what a gradient for logits is goes there once, also where their softmax is used as well.
    """
    import tensorflow as tf

    return list(tf.compat.v1.gradients(
        ys, xs, by, colocate_gradients_with_ops=True, stop_gradients=stop
    ))  # fmt: skip


def _leading_to(results: Sequence[Any], ops: Sequence[Any]) -> list[Any]:
    """Keep the operations that some of the results need: who waits for another makes it run."""
    import tensorflow as tf

    needed = {x.op for each in results for x in tf.nest.flatten(each, expand_composites=True)}
    kept = []
    for op in reversed(ops):
        if op in needed:
            kept.append(op)
            needed.update(x.op for x in op.inputs)
    return kept[::-1]
