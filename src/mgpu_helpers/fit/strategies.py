"""The strategy of TensorFlow for the devices that there are, on one machine and on several."""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from mgpu_helpers import _private
from mgpu_helpers._later import tf
from mgpu_helpers.devices.machine import one_of_several_workers
from mgpu_helpers.devices.messages import explain
from mgpu_helpers.devices.plan import Plan, checked, planned
from mgpu_helpers.fit._asking import ask as kinds_of
from mgpu_helpers.fit._kinds import Step, Unknown, is_own
from mgpu_helpers.fit.data import joined
from mgpu_helpers.fit.shares import Predicted, Shared, Whole, mark_of, taking
from mgpu_helpers.fit.trainer import in_force, mend_entries, results_of_all

_made: dict[tuple[str, ...], Any] = {}
BY_WORKER = ("each worker",)
# Gradients are exchanged in packs of at least so many bytes, those of the last layers first, while
# the backward pass goes on. PyTorch's DistributedDataParallel takes as much.
PACK = 25 * 2**20


def strategy(plan: Plan | Iterable[Any] | None = None, *, synchronized: bool = True) -> Any:
    """Give the strategy for a plan's devices, in whose scope a model is to be made and compiled.

    Some of the devices are given by name: `strategy(plan.devices[:2])`.

    It is a `tf.distribute.MirroredStrategy`, for one device a `OneDeviceStrategy`, and where
    TF_CONFIG names several workers, as under `mgpu cluster`, a `MultiWorkerMirroredStrategy` on
    what this worker has. The same devices get the same one again.

    synchronized: each BatchNormalization of a model that is made in its scope normalizes by the
    statistics of the global batch, as on one device. With False each replica takes its own, which
    saves the exchanges that each such layer waits for, and trains something else.

    >>> import keras
    >>> with strategy(plan).scope():
    ...     model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    ...     model.compile("sgd", "mse")
    >>> model.distribute_strategy.num_replicas_in_sync == len(plan)
    True
    """
    mend_entries()
    devices: tuple[str, ...] = ()
    if not one_of_several_workers():
        whole = plan if isinstance(plan, Plan) else planned()
        given = whole if plan is None else plan
        devices = given.devices if isinstance(given, Plan) else checked(given)
    if devices not in _made:
        if not devices:
            made = _of_workers()
        elif len(devices) == 1:
            made = _of(tf.distribute.OneDeviceStrategy)(devices[0])
        else:  # NCCL wants a GPU for each device, and a ring of cores cannot run in a loop
            to_one = None if whole.mode == "gpus" else tf.distribute.ReductionToOneDevice()
            kind = _private.numbered(_of(tf.distribute.MirroredStrategy), 1 + len(_made))
            made = kind(list(devices), to_one)
        _made[devices] = made
    _made[devices].synchronized = synchronized
    return _made[devices]


def by_worker() -> Any:
    """Give the strategy of which each worker is one replica, whatever its devices are."""
    class OneEach(tf.distribute.cluster_resolver.TFConfigClusterResolver):
        def num_accelerators(self, *args: Any, **named: Any) -> dict[str, int]:
            return {kind: 1 for kind in super().num_accelerators(*args, **named)}

    mend_entries()
    if BY_WORKER not in _made:
        several = len(tf.config.list_logical_devices("GPU")) > 1
        _made[BY_WORKER] = _of_workers(OneEach()) if several else strategy()
    return _made[BY_WORKER]


def _of_workers(resolver: Any = None) -> Any:
    try:
        made = _of(tf.distribute.MultiWorkerMirroredStrategy)(resolver)
    except RuntimeError as error:
        error.add_note(explain(error))
        raise
    with tf.device("/CPU:0"):
        made.seen = tf.Variable(tf.zeros([2], tf.float64))
    return made


class _Scope(contextlib.ExitStack):
    """A scope that lasts until it is left, as TensorFlow's does, also where nobody keeps it."""

    entered: ClassVar[set[Any]] = set()

    def __init__(self, scope: Any) -> None:
        super().__init__()
        self.scope = scope

    def __enter__(self) -> Any:
        self.enter_context(in_force())
        strategy = self.enter_context(self.scope)
        self.entered.add(self)
        return strategy

    def __exit__(self, *error: Any) -> Any:
        self.entered.discard(self)
        return super().__exit__(*error)


@functools.cache
def _of(kind: Any) -> Any:
    """Make a kind of strategy hand out whole batches, and let each replica take its part."""

    class Strategy(kind):
        """TensorFlow's strategy, which gives each replica its share of every batch."""

        of_fit, synchronized = True, True
        kinds: Any = weakref.WeakKeyDictionary()  # of a model's losses, by the name of a step
        packs = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=PACK)
        passes_before: Any = None  # what lets the next `fit` begin with its data where it was
        before_training: Any = None  # what is told of each model and its first batch
        steps_before = 0  # steps of its first pass that were done before
        asks_at_each_step = False  # whether all workers have a batch
        seen: Any = None  # of the batches that several workers have read: their size and mark
        gathers: Any = None  # what gives a row of each replica, once it is traced

        def scope(self) -> Any:
            """Make what is made in the block for these devices, and let Keras be mended in it."""
            return _Scope(super().scope())

        @property
        def worker(self) -> int:
            """Number this worker; 0 is the chief."""
            resolver = self.cluster_resolver
            if resolver is None or not resolver.task_type:
                return 0
            first = 1 if "chief" in resolver.cluster_spec().jobs else 0
            return 0 if resolver.task_type == "chief" else int(resolver.task_id) + first

        @property
        def workers(self) -> int:
            """Count the workers, of which this one is one."""
            return self.num_replicas_in_sync // self.local

        @property
        def local(self) -> int:
            """Count the replicas of this worker."""
            return len(self.extended.worker_devices)

        def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
            shared = Shared(dataset)
            return shared.asks(self) if self.asks_at_each_step else shared

        def distribute_datasets_from_function(self, dataset_fn: Any, options: Any = None) -> Any:
            """Do as TensorFlow does, and let `fit` have the global batches."""
            given = []

            def kept(context: Any) -> Any:
                given.append(dataset_fn(context))
                return given[-1]

            def of_all() -> Any:
                if self.workers > 1:
                    raise ValueError(
                        "distribute_datasets_from_function gives each of "
                        f"{self.workers} workers data of its own, and in fit each reads all data "
                        "and takes its part of every batch: give fit the Dataset of global batches."
                    )
                return joined(given[0], self.num_replicas_in_sync)

            made = super().distribute_datasets_from_function(kept, options)
            made.of_all = of_all
            return made

        def place(self) -> int:
            """Number the part of a replica, as `predict` puts what they give in order again."""
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            worker, local = divmod(int(tf.get_static_value(number)), self.local)
            return local * self.workers + worker

        def known(self, fn: Any) -> tuple[dict[str, Any], str]:
            """Give what is known of a model's steps, or of a function, and the name in it."""
            fn = inspect.unwrap(fn)
            of, name = (fn.__self__, fn.__name__) if inspect.ismethod(fn) else (fn, "")
            return self.kinds.setdefault(of, {}), name

        def step_of(self, fn: Any) -> Any:
            """Make a function that makes what is known of a step of a model."""
            kinds, name = self.known(fn)
            return lambda: Step(kinds.get(name, []), is_own(fn), self)

        def forget(self, fn: Any) -> None:
            """Forget what is known of a step."""
            kinds, name = self.known(fn)
            kinds.pop(name, None)

        def ask(self, model: Any, fn: Any, whole: Any) -> None:
            """Ask by a batch what the losses of a model's step are."""
            kinds, name = self.known(fn)
            batch = whole.batch if isinstance(whole, Whole) else whole
            kinds[name] = kinds_of(model, fn, batch, self)

        def asking(self, model: Any, batch: Any, trace: Callable[[], Any]) -> Any:
            """Trace a training step, as `fit` does at its first; what fit knows of it stays."""
            kinds, name = self.known(model.train_step)
            before = {name: kinds.pop(name)} if name in kinds else {}
            own = is_own(model.train_step)
            try:
                with in_force(), results_of_all(model) if own else contextlib.nullcontext():
                    try:
                        return trace()
                    except Unknown:
                        self.ask(model, model.train_step, batch)
                        return trace()
            finally:
                kinds.pop(name, None)
                kinds.update(before)

        def run(self, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
            if args and isinstance(args[0], Whole | Predicted):
                if self.seen is not None:
                    self.seen.assign_add(mark_of(args[0].batch))
                fn = taking(fn, self.place, self.num_replicas_in_sync, self.step_of(fn))
            with in_force():
                return super().run(fn, args, kwargs, options)

        def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
            own = self.experimental_local_results(value)
            if axis == 0 and all(each.shape.rank == 0 for each in own):
                axis = None  # Keras asks so for a metric of several workers: TensorFlow refuses
            return super().reduce(reduce_op, value, axis)

    Strategy.__name__ = kind.__name__
    return Strategy
