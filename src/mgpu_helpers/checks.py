"""What the exercises call: each prints "yes: …", or "not yet: …" with the way on."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mgpu_helpers import devices, memory, models, pipeline, placement, scaling, trace
from mgpu_helpers.wording import counted


def _not_yet(why: str) -> None:
    print(f"not yet: {why}")


def _raised(error: Exception) -> None:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    _not_yet(f"it raises {type(error).__name__}: {lines[-1] if lines else ''}")


def _traced(function: Callable[..., Any], *args: Any) -> tuple[Any, trace.Trace]:
    """Trace a function as a GPU machine places it: what it leaves open is on the first device."""
    import tensorflow as tf

    with tf.device(devices.current().devices[0]):
        return trace.function_step(function, *args)


def default_device(answer: Any) -> None:
    """Check exercise 1 of lesson 00: the device that TensorFlow chooses unasked."""
    import tensorflow as tf

    right = devices.short(tf.ones([2, 2]).device)
    if answer is None:
        return _not_yet("put a device name into answer; a tensor has one in .device")
    if not isinstance(answer, str):
        return _not_yet(f"a device name is a string such as '/CPU:0', not {answer!r}")
    if devices.short(answer) != right:
        return _not_yet(f"it is not on {answer or 'nothing'}; make it and look at its .device")
    print("yes: that is where TensorFlow puts what nobody places")


def multiply_columns(function: Callable[[Any, Any], Any]) -> None:
    """Check exercise 2 of lesson 00: value, places and bytes of a product shared by columns."""
    plan = devices.current()
    rng = np.random.default_rng(seed=1)
    left = rng.integers(-3, 4, [60, 40]).astype("float32")
    right = rng.integers(-3, 4, [40, 840]).astype("float32")
    try:
        value, step = _traced(function, left, right)
    except Exception as error:
        return _raised(error)
    if value is None:
        return _not_yet("the function returns nothing")
    if value.shape != (60, 840):
        return _not_yet(
            f"the product has shape {value.shape}, not (60, 840): columns are joined along axis 1"
        )
    if not np.array_equal(value, left @ right):
        return _not_yet("the shape is right and the numbers are not: are the pieces in order?")
    idle = set(plan.devices) - {op.device for op in step.ops if op.type == "MatMul"}
    if idle:
        return _not_yet(f"{', '.join(sorted(idle))} multiplied nothing: is tf.device in the loop?")
    wanted = left.nbytes + right.nbytes // len(plan)
    for copy in step.copies:
        if copy.source in plan.devices and copy.target in plan.devices:
            return _not_yet(
                f"{copy.source} sends to {copy.target}: cut and join in a block of {plan.host}"
            )
    for device in plan.devices:
        got = sum(c.bytes for c in step.copies if c.target == device)
        if got > wanted:
            way = "cut right on the host, outside the device's block"
            if got < left.nbytes + right.nbytes:
                way = "send all of left, and cut right, not left"
            return _not_yet(
                f"{device} got {got:,} bytes, where all of left and its columns of right are "
                f"{wanted:,}: {way}"
            )
    print(f"yes: the same product, and each device got {wanted:,} bytes")


def full_name(answer: Any) -> None:
    """Check exercise 1 of lesson 01: the full name of the plan's last device."""
    import tensorflow as tf

    last = devices.current().devices[-1]
    right = next(d.name for d in tf.config.list_logical_devices() if devices.short(d.name) == last)
    right = f"/job:localhost/replica:0/task:0{right}"
    if isinstance(answer, tf.DeviceSpec):
        return _not_yet("that is the spec; its to_string() is the name")
    if not isinstance(answer, str):
        return _not_yet(f"a device name is a string, not {answer!r}")
    if answer == last:
        return _not_yet("that is the short name; merge it with the job, the replica and the task")
    if answer != right:
        missing = [p for p in ("job:localhost", "replica:0", "task:0") if p not in answer]
        why = f"{', '.join(missing)} is missing" if missing else f"the device is not {last}"
        if not missing and devices.short(answer) == last:
            part = tf.DeviceSpec.from_string(last).to_string()
            why = f"in a full name the device part is written {part}"
        return _not_yet(f"{answer!r}: {why}")
    print(f"yes: {right}")


def variables_on_host(choose: Callable[[Any], str]) -> None:
    """Check exercise 2 of lesson 01: a device function that keeps variables on the host."""
    import tensorflow as tf

    plan = devices.current()
    graph = tf.Graph()

    def place(op: Any) -> str:
        device = choose(op)
        return device if isinstance(device, str) else ""

    with graph.as_default(), tf.compat.v1.device(place):
        x = tf.compat.v1.placeholder(tf.float32, [None, 3], name="x")
        weights = tf.compat.v1.get_variable("weights", initializer=tf.ones([3, 2]))
        product = tf.matmul(x, weights, name="product")
    config = plan.session_config(log_placement=True)
    try:
        with (
            placement.capture() as log,
            tf.compat.v1.Session(graph=graph, config=config) as session,
        ):
            session.run(weights.initializer)
            session.run(product, {x: np.ones([1, 3])})
    except tf.errors.InvalidArgumentError:
        return _not_yet("an operation that reads or assigns the variable is not where it is")
    for row in sorted(log.rows, key=lambda row: row.type != "VarHandleOp"):  # others follow it
        wanted = plan.host if "Var" in row.type else plan.devices[0]
        if row.device != wanted:
            return _not_yet(f"{row.name}, a {row.type}, is on {row.device}, not on {wanted}")
    print(f"yes: variables on {plan.host}, the rest on {plan.devices[0]}")


def add_entries(function: Callable[[Any], Any]) -> None:
    """Check exercise 3 of lesson 01: one number from each device instead of a matrix."""
    plan = devices.current()
    x = np.random.default_rng(seed=2).integers(-3, 4, [60, 60]).astype("float32")
    try:
        value, step = _traced(function, x)
    except Exception as error:
        return _raised(error)
    if value is None or np.shape(value) != ():
        return _not_yet(f"the result has shape {np.shape(value)}; one number is wanted")
    if value != len(plan) * (x @ x).sum():
        return _not_yet(f"the sum is {value:.0f}, not {len(plan) * (x @ x).sum():.0f}")
    idle = set(plan.devices) - {op.device for op in step.ops if op.type == "MatMul"}
    if idle:
        return _not_yet(f"{', '.join(sorted(idle))} multiplied nothing")
    for (source, target), size in step.bytes_between().items():
        if source in plan.devices and size > 4:
            return _not_yet(f"{source} sent {size:,} bytes to {target}: add up in its own block")
    print("yes: the same number, and each device sent 4 bytes")


def distances(function: Callable[..., Any]) -> None:
    """Check exercise 1 of lesson 06: a function of two batches on every device."""
    plan = devices.current()
    n = 12 * len(plan)
    points = np.arange(2 * n, dtype="float32").reshape(n, 2)
    others = points + np.array([3, 4], "float32")
    try:
        value, step = _traced(lambda p, q: function(points=p, others=q), points, others)
    except Exception as error:
        return _raised(error)
    if value.shape != (n,):
        return _not_yet(f"the result has shape {value.shape}, not ({n},)")
    if not np.array_equal(value, np.full(n, 5.0, "float32")):
        return _not_yet("every distance should be 5")
    idle = set(plan.devices) - {op.device for op in step.ops}
    if idle:
        return _not_yet(f"{', '.join(sorted(idle))} did nothing: wrap it with make_parallel")
    print(f"yes: {n} distances of 5, and every device did its share")


def uneven(make: Callable[..., Any]) -> None:
    """Check exercise 2 of lesson 06: shards that differ by one example at most."""
    plan = devices.current()
    x = np.arange(5 * len(plan) + 1, dtype="float32")
    sizes: list[int] = []

    def square(x: Any) -> Any:
        sizes.append(int(x.shape[0]))
        return x * x

    try:
        value = np.asarray(make(square, plan.devices)(x=x))
    except Exception as error:
        return _not_yet(
            f"{len(x)} examples raise {type(error).__name__}: give tf.split sizes that add up to "
            f"{len(x)}"
        )
    if not np.array_equal(value, x * x):
        return _not_yet("the numbers are not those of the whole batch, in order")
    if sorted(sizes) != sorted(map(len, np.array_split(x, len(plan)))):
        return _not_yet(f"the shards hold {sizes} examples; they should differ by one at most")
    print(f"yes: {len(x)} examples as {' + '.join(map(str, sizes))}")


def mean_error(function: Callable[[Any, Any], Any], error: Callable[[Any, Any], Any]) -> None:
    """Check exercise 3 of lesson 06: one number from each device instead of one an example."""
    plan = devices.current()
    rng = np.random.default_rng(seed=3)
    x, y = rng.integers(-5, 6, [2, 24 * len(plan)]).astype("float32")
    try:
        value, step = _traced(function, x, y)
    except Exception as error:
        if "scalars" in str(error):
            return _not_yet("a shard's mean has no row left to join: keepdims=True keeps one")
        return _raised(error)
    if np.ndim(value):
        return _not_yet(f"the result has shape {np.shape(value)}; one number is wanted")
    right = np.mean(error(x, y))
    if not np.isclose(value, right, rtol=1e-4):
        return _not_yet(f"the mean is {value:.4g}, not {right:.4g}")
    idle = set(plan.devices) - {op.device for op in step.ops if op.type == "MatMul"}
    if idle:
        return _not_yet(f"{', '.join(sorted(idle))} did nothing")
    # What reads the weights has to send them.
    for copy in sorted(step.copies, key=lambda copy: devices.order(copy.source)):
        if copy.source in plan.devices and copy.bytes > 4 and "ReadVariable" not in copy.tensor:
            return _not_yet(
                f"{copy.source} sent {copy.bytes:,} bytes: take the mean of its shard there, "
                "before it is sent"
            )
    print("yes: the same mean, and each device sent 4 bytes")


def weighted_average(function: Callable[..., Any]) -> None:
    """Check exercise 1 of lesson 07: gradients weighted by the sizes of their shards."""
    towers = [[np.float32([1, 2]), np.float32(10)], [np.float32([5, 6]), np.float32(50)]]
    try:
        got = [np.asarray(g) for g in function(towers, [3, 1])]
    except Exception as error:
        return _raised(error)
    wanted = [np.float32([2, 3]), np.float32(20)]
    if len(got) != 2 or any(g.shape != w.shape for g, w in zip(got, wanted, strict=True)):
        return _not_yet("return one gradient for each variable, of the variable's shape")
    if np.allclose(got[1], 30):
        return _not_yet("3 examples and 1 count the same: 10 and 50 should become 20, not 30")
    if np.allclose(got[1], 80):
        return _not_yet("divide the sizes by their sum: 10 and 50 should become 20, not 80")
    if not all(np.allclose(g, w) for g, w in zip(got, wanted, strict=True)):
        return _not_yet(f"10 and 50, from 3 examples and 1, should become 20, not {got[1]:.3g}")
    print("yes: 10 from 3 examples and 50 from 1 become 20")


def half_the_bytes(function: Callable[..., Any]) -> None:
    """Check exercise 2 of lesson 07: an average whose parts cross in half the bytes."""
    import tensorflow as tf

    plan, length = devices.current(), 1000

    def step(seed: Any) -> Any:
        vectors = []
        for i, device in enumerate(plan.devices):
            with tf.device(device):
                vectors.append(tf.random.stateless_normal([length], tf.stack([seed, i])))
        return function(vectors), tf.add_n(vectors) / len(vectors)

    try:
        (got, wanted), _ = _traced(step, tf.constant(3))
        _, traced = _traced(lambda seed: step(seed)[0], tf.constant(3))
    except Exception as error:
        return _raised(error)
    if not isinstance(got, np.ndarray) or got.shape != (length,):
        return _not_yet(f"return one vector of {length} numbers")
    if got.dtype != np.float32:
        return _not_yet(f"the average should be float32, not {got.dtype}")
    if any(c.target in plan.devices and c.bytes > 100 for c in traced.copies):
        return _not_yet(f"the average should be made on {plan.host}")
    if not np.allclose(got, wanted, atol=0.01):
        return _not_yet("the average is not right to 0.01")
    for device in plan.devices:
        sent = sum(c.bytes for c in traced.copies if c.source == device)
        if sent > 2 * length:
            return _not_yet(f"{device} sent {sent:,} bytes; {2 * length:,} are enough: cast there")
    print(f"yes: right to 0.01, and {2 * length:,} bytes from each device, not {4 * length:,}")


def mask_seed(function: Callable[[int, int], Any]) -> None:
    """Check exercise 3 of lesson 07: a dropout seed for each step and tower."""
    seen: dict[tuple[int, ...], tuple[int, int]] = {}
    for step in range(20):
        for tower in range(8):
            seed = tuple(int(part) for part in np.ravel(function(step, tower)))
            if len(seed) != 2:
                return _not_yet(f"a seed has two whole numbers, not {len(seed)}")
            if seed in seen:
                return _not_yet(
                    f"step {step} of tower {tower} has the seed of step {seen[seed][0]} of tower "
                    f"{seen[seed][1]}: {seed}"
                )
            seen[seed] = step, tower
    print("yes: 20 steps of 8 towers have 160 seeds")


def quarter_and_growth(answer: Any) -> None:
    """Check exercise 1 of lesson 02: a ConfigProto with growth and a quarter of each GPU."""
    from tensorflow.compat.v1 import ConfigProto

    if not isinstance(answer, ConfigProto):
        return _not_yet(f"a configuration is a tf1.ConfigProto, not a {type(answer).__name__}")
    options = answer.gpu_options
    if options.per_process_gpu_memory_fraction > 1:
        return _not_yet(
            f"{options.per_process_gpu_memory_fraction:g} is a share, so it means "
            f"{options.per_process_gpu_memory_fraction:g} times the card; a quarter is 0.25"
        )
    if options.per_process_gpu_memory_fraction != 0.25:
        return _not_yet(f"the share is {options.per_process_gpu_memory_fraction:g}, not a quarter")
    if not options.allow_growth:
        return _not_yet("the session takes its quarter at once: let it grow")
    print("yes: it starts small and takes a quarter of each GPU at most")


def batch_that_fits(answer: Any) -> None:
    """Check exercise 2 of lesson 02: the largest batch of a network within 60 MB, measured."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    plan, budget, network = devices.current(), 60_000_000, models.seed_000(hidden=9600, width=0.25)
    if isinstance(answer, bool) or not isinstance(answer, int | np.integer) or answer < 1:
        return _not_yet(f"a batch is a number of examples, not {answer!r}")
    if answer > 10_000:
        return _not_yet(f"a batch of {answer:,} is not run here: it is far more than fits")
    weights = 4 * models.parameters(network)
    with tf.Graph().as_default() as graph, tf.device(plan.devices[0]):
        x = tf1.placeholder(tf.float32, [None, 28, 28, 1], name="x")
        y = tf1.placeholder(tf.int64, [None], name="y")
        loss = models.loss(models.logits(network, models.classic(network), x), y)
        tf1.train.MomentumOptimizer(1e-3, 0.9).minimize(loss, name="train")
        start = tf1.global_variables_initializer()
    config = plan.session_config(devices=1, soft_placement=True)
    with tf1.Session(graph=graph, config=config) as session:
        session.run(start)
        feed = {"x:0": np.zeros([answer, 28, 28, 1]), "y:0": np.zeros([answer])}
        train = graph.get_operation_by_name("train")
        session.run(train, feed)
        _, step = trace.session_step(session, train, feed)
    total = 2 * weights + step.peak(plan.devices[0], scratch=False)
    said = f"a batch of {answer} holds {total / 1e6:.1f} MB"
    if total > budget:
        return _not_yet(f"{said}, above the budget of 60 MB")
    if answer == memory.fits(network, budget, slots=2):
        return _not_yet("that is the answer for Adam's two slots; momentum has one")
    if total < 0.95 * budget:
        return _not_yet(f"it holds {total / 1e6:.0f} MB: there is room for more within 60 MB")
    print(f"yes: it holds {total / 1e6:.0f} MB of 60, weights and slots included")


def lets_go(train: Callable[[Callable[[], Any], int], Any]) -> None:
    """Check exercise 3 of lesson 02: a list of losses that keeps no tape alive."""
    import tensorflow as tf

    tapes: list[weakref.ref[Any]] = []
    alive = 0

    def count() -> int:
        gc.collect()
        return sum(tape() is not None for tape in tapes)

    def step() -> tuple[Any, Any]:
        nonlocal alive
        alive = max(alive, count())
        with tf.GradientTape() as tape:
            loss = tf.constant(float(len(tapes)))
        tapes.append(weakref.ref(tape))
        return loss, tape

    try:
        losses = train(step, 4)
        numbers = [float(loss) for loss in losses]
    except Exception as error:
        if len(tapes) != 4:
            return _raised(error)
        numbers = None
    alive = max(alive, count())
    if alive > 1:
        return _not_yet(f"{alive} of {counted(len(tapes), 'tape')} were alive at the same time")
    if len(tapes) != 4:
        return _not_yet(f"step was called {counted(len(tapes), 'time')} in 4 steps")
    if numbers != [0, 1, 2, 3]:
        return _not_yet("it should return the four losses in order, as numbers")
    print("yes: four losses, and no tape was kept")


def outside(function: Callable[[str, str], Any]) -> None:
    """Check exercise 1 of lesson 03: from TensorFlow's number of a GPU to nvidia-smi's."""
    visible = "3,0,12,5,7,1,2,4,6,8,9,10"
    for device, right in (("/GPU:0", 3), ("/GPU:1", 0), ("/GPU:2", 12), ("/GPU:11", 10)):
        try:
            got = function(visible, device)
        except Exception as error:
            return _raised(error)
        if str(got) == device[-1]:
            return _not_yet(f"{got} is the number inside; {visible!r} says who that is outside")
        if isinstance(got, str) and got.strip() == str(right):
            return _not_yet(f"{got!r} is right, but text: make it a number")
        if got != right:
            return _not_yet(f"with {visible!r}, {device} is {right}, not {got!r}")
    print("yes: four GPUs found")


def environment(function: Callable[[int], Any]) -> None:
    """Check exercise 2 of lesson 03: an environment for a child that sees one GPU."""
    kept = dict(os.environ)
    os.environ.pop("CUDA_DEVICE_ORDER", None)  # devices.setup has set it here
    os.environ["MGPU_MARK"] = "kept"
    before = dict(os.environ)
    program = (
        "import json, os; print(json.dumps([os.environ.get(name) for name in "
        "('CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER', 'MGPU_MARK')]))"
    )
    try:
        given = function(2)
        if dict(os.environ) != before:
            return _not_yet("it changed this notebook's environment: give a changed copy")
        if not isinstance(given, Mapping):
            return _not_yet(f"an environment is a dict of text, not {given!r}")
        numbers = [name for name, value in given.items() if not isinstance(value, str)]
        if numbers:
            return _not_yet(f"the value of {numbers[0]} is not text: write str(...)")
        done = subprocess.run(
            [sys.executable, "-c", program], env=given, capture_output=True, text=True, check=True
        )
    except Exception as error:
        return _raised(error)
    finally:
        os.environ.clear()
        os.environ.update(kept)
    visible, ordered, mark = json.loads(done.stdout)
    if visible != "2":
        return _not_yet(f"the child sees CUDA_VISIBLE_DEVICES={visible!r}, not '2'")
    if ordered != "PCI_BUS_ID":
        return _not_yet("CUDA may count in another order than nvidia-smi: set CUDA_DEVICE_ORDER")
    if mark is None:
        return _not_yet("the rest of the environment is lost: start from a copy of os.environ")
    print("yes: the child saw GPU 2 alone, and nothing changed here")


def wall(function: Callable[[list[float], int], Any]) -> None:
    """Check exercise 3 of lesson 03: how long a queue takes that keeps its order."""
    for seconds, n, right in (
        ([2, 2, 3], 2, 5), ([3], 2, 3), ([5, 1, 1, 1], 2, 5), ([1, 2, 3, 4], 1, 10),
        ([4, 3, 3, 2, 2], 3, 5), ([3, 1, 4, 1, 5], 2, 9),
    ):  # fmt: skip
        try:
            got = function(list(seconds), n)
        except Exception as error:
            return _raised(error)
        if got == right:
            continue
        if got == sum(seconds) / n:
            return _not_yet(f"{got:g} is {seconds} shared out evenly: a job cannot be cut in two")
        why = f"{seconds} on {counted(n, 'device')} take {right}, not {got!r}"
        return _not_yet(f"{why}: in their order, each takes the first device that is free")
    print("yes: six queues")


def trains(function: Callable[[Any, Any, Any], Any]) -> None:
    """Check exercise 1 of lesson 04: does a run move any trainable variable?"""
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [])
        still = tf1.get_variable("still", initializer=[1.0, 2.0])
        moves = tf1.get_variable("moves", initializer=[3.0, 4.0])
        last = tf1.get_variable("last", initializer=[5.0])
        counter = tf1.get_variable("counter", initializer=0, trainable=False)
        loss = tf.reduce_sum(still) + x * (moves[0] - moves[1]) + tf.reduce_sum(last)
        train = moves.assign_sub(0.5 * tf1.gradients(loss, moves)[0]).op  # its sum stays
        count = counter.assign_add(1).op
        start = tf1.global_variables_initializer()
    calls = []

    class Counting(tf1.Session):
        def run(self, fetches: Any, *args: Any, **more: Any) -> Any:
            calls.append(fetches)
            return super().run(fetches, *args, **more)

    config = devices.current().session_config(soft_placement=True)
    with contextlib.closing(Counting(graph=graph, config=config)) as session:
        for fetches, value, right, what in (
            (loss, 1.0, False, "fetching the loss alone moves nothing"),
            ([loss, train], 1.0, True, "fetching the training too moves a weight"),
            ([loss, count], 1.0, False, "only a counter moved, which nobody trains"),
            ([loss, train], 0.0, False, "a gradient of zero moves nothing"),
        ):
            session.run(start)
            calls.clear()
            try:
                got = function(session, fetches, {x: value})
            except Exception as error:
                return _raised(error)
            if calls.count(fetches) != 1:
                return _not_yet(f"the fetches were run {counted(calls.count(fetches), 'time')}")
            if bool(got) != right or got is None:
                return _not_yet(f"{what}, and it says {got!r}")
    print("yes: four runs told apart")


def agreed(function: Callable[[Any], Any]) -> None:
    """Check exercise 2 of lesson 04: the label that all members say, or -1."""
    said = np.array([[3, 1, 0, 2, 9, 4], [3, 1, 1, 2, 0, 7], [3, 2, 0, 2, 8, 7]])
    sure = (0.9, 0.2, 0.5)  # how far above the rest each member's choice is
    predicted = {f"g{i + 1}": (1 - s) / 10 + s * np.eye(10)[said[i]] for i, s in enumerate(sure)}
    right = [3, -1, -1, 2, -1, -1]
    try:
        got = function(predicted)
        if got is None or np.shape(got) != (6,):
            return _not_yet(f"six digits need six labels, not {got!r}")
        got = [int(label) for label in got]
    except Exception as error:
        return _raised(error)
    if -1 not in got:
        return _not_yet("members that disagree give no -1")
    if got != right:
        return _not_yet(f"members that say {said.T.tolist()} agree on {right}, not on {got}")
    print("yes: a label where all agree, -1 where they do not")


def run_all(function: Callable[[list[Callable[[], Any]]], Any]) -> None:
    """Check exercise 3 of lesson 04: functions at once, results in order."""
    meet = threading.Barrier(3)

    def work(i: int) -> Any:
        try:
            meet.wait(timeout=1)  # passes when all three are here
        except threading.BrokenBarrierError:
            return None
        time.sleep(0.02 * (3 - i))  # the first ends last
        return 10 * i

    before = threading.active_count()
    try:
        got = function([lambda i=i: work(i) for i in range(3)])
    except Exception as error:
        return _raised(error)
    if meet.broken:
        return _not_yet("the functions did not run at the same time: start all, then join all")
    if threading.active_count() > before:
        return _not_yet("it came back before the threads had ended: join them")
    if got is None or list(got) != [0, 10, 20]:
        return _not_yet(f"the results should be [0, 10, 20], in order, not {got!r}")
    print("yes: three at once, and their results in order")


def within_budget(starts: Any) -> None:
    """Check exercise 1 of lesson 05: a cut whose larger part holds 62 MB at most, measured."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    plan, budget, network = devices.current(), 62_000_000, models.seed_000(hidden=7200, width=0.25)
    if isinstance(starts, str) or not isinstance(starts, Sequence) or len(starts) != 1:
        return _not_yet(f'two parts need one name in a list, such as ["fc1"], not {starts!r}')
    try:
        pipeline.cut(network, starts)
    except ValueError as error:
        return _raised(error)
    where = [plan.devices[0], plan.devices[-1]]
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [512, 28, 28, 1])
        y = tf1.placeholder(tf.int64, [512])
        stages = pipeline.stages(network, starts, where)
        _, gradients = pipeline.gradients(stages, models.loss, x, y)
        pairs = [(gradients[n], w) for stage in stages for n, w in stage.weights.items()]
        train = tf1.train.AdamOptimizer(1e-3).apply_gradients(pairs)
        start = tf1.global_variables_initializer()
    config = plan.session_config(soft_placement=True)
    with tf1.Session(graph=graph, config=config) as session:
        session.run(start)
        feed = {x: np.zeros([512, 28, 28, 1]), y: np.zeros([512])}
        session.run(train, feed)
        _, step = trace.session_step(session, train, feed)
    for i, part in enumerate(pipeline.cut(network, starts)):
        own = [a for a in step.allocations if a.op.startswith(f"stage_{i}/") and not a.scratch]
        held = 3 * 4 * models.parameters(part) + max(size for _, size in trace.curve(own))
        if held > budget:
            return _not_yet(f"part {i + 1} holds more than 62 MB")
    print("yes: both parts hold less than 62 MB")


def two_at_most(function: Callable[[int, int], Any]) -> None:
    """Check exercise 2 of lesson 05: an order in which no stage holds more than two pieces."""
    for stages, pieces in ((2, 3), (3, 4), (4, 6), (3, 1)):
        said = f"with {counted(stages, 'stage')} and {counted(pieces, 'piece')}"
        try:
            schedule = [list(steps) for steps in function(stages, pieces)]
            found = pipeline.check(schedule)
        except Exception as error:
            return _raised(error)
        if (len(schedule), found) != (stages, pieces):
            return _not_yet(f"{said}: a schedule for {len(schedule)} and {found}")
        for stage, steps in enumerate(schedule):
            held = np.cumsum([1 if step[0] == "F" else -1 for step in steps]).max()
            if held > 2:
                return _not_yet(f"{said}, stage {stage} holds {held} pieces at once")
        columns = max(end for _, end in pipeline.run_times(schedule).values())
        if pieces > 1 and columns >= 2 * stages * pieces:
            return _not_yet(f"{said} it takes as long as one piece after the other")
    print("yes: never more than two pieces, and faster than one after the other")


def accumulate(function: Callable[[Callable[[Any, Any], Any], Any], Any]) -> None:
    """Check exercise 3 of lesson 05: gradients of pieces added up, weighted, few at a time."""
    import tensorflow as tf

    sizes, most, largest = (4, 3, 1, 2, 4, 2), 0, 0
    x, y = np.arange(16, dtype=np.float32), np.ones(16, np.float32)
    length = 1237  # of a gradient, so that whatever is made from one is known by it

    def gradient_of(x: Any, y: Any) -> Any:
        nonlocal most, largest
        gc.collect()
        held = (o for o in gc.get_objects() if isinstance(o, tf.Tensor) and o.shape == [length])
        most, largest = max(most, 1 + len(list(held))), max(largest, len(x))
        return tf.fill([length], tf.reduce_mean(tf.convert_to_tensor(x) * y))

    cuts = np.cumsum(sizes)[:-1]
    pieces = list(zip(np.split(x, cuts), np.split(y, cuts), strict=True))
    try:
        got = np.asarray(function(gradient_of, pieces))
    except Exception as error:
        return _raised(error)
    means = [part.mean() for part in np.split(x, cuts)]
    wrong = {
        float(np.mean(means)): "pieces of 4 and of 1 count the same: weigh each by its size",
        float(np.sum(means)): "the gradients are added, and not divided",
        float(means[-1]): "only the last piece is left: add",
    }
    if got.shape != (length,) or np.ptp(got):
        return _not_yet(f"one gradient like those of gradient_of, of {length} numbers alike")
    got = got[0]
    for value, why in wrong.items():
        if np.isclose(got, value):
            return _not_yet(why)
    if not np.isclose(got, x.mean()):
        return _not_yet(f"pieces of {sizes} should give {x.mean():g}, not {got:g}")
    if largest > max(sizes):
        return _not_yet(f"right, but one call had {largest} examples: a piece has 4 at most")
    if most > 3:
        return _not_yet(f"right, but {most} gradients were held at once: add each as it comes")
    print("yes: right for pieces of 4, 3, 2 and 1, and never all gradients at once")


def efficiency(function: Callable[[dict[int, float], str], Any]) -> None:
    """Check exercise 1 of lesson 08: the efficiency of strong and of weak scaling."""
    for seconds, kind, right in (
        ({1: 8.0, 2: 5.0, 4: 4.0}, "strong", {1: 1.0, 2: 0.8, 4: 0.5}),
        ({1: 8.0, 2: 10.0, 4: 16.0}, "weak", {1: 1.0, 2: 0.8, 4: 0.5}),
        ({1: 2.0, 3: 2.5}, "weak", {1: 1.0, 3: 0.8}),
    ):
        try:
            got = dict(function(dict(seconds), kind))
            same = got.keys() == right.keys() and all(np.isclose(got[n], right[n]) for n in right)
        except Exception as error:
            return _raised(error)
        if not same:
            return _not_yet(f"{kind} scaling, {seconds}: the efficiencies are {right}, not {got}")
    print("yes: strong and weak scaling told apart")


def share_of_peak(function: Callable[[float, float, float, float, float], Any]) -> None:
    """Check exercise 2 of lesson 08: what share of a card's peak a claim needs."""
    for given, right in (((50e6, 55_000, 10, 1.0, 11e12), 2.5), ((1e9, 1000, 2, 4.0, 1e12), 0.5)):
        try:
            got = function(*given)
            same = np.isclose(got, right)
        except Exception as error:
            return _raised(error)
        if not same:
            return _not_yet(
                f"{given[0]:g} FLOP, {given[1]:,} examples, {given[2]} epochs, {given[3]:g} s and "
                f"a peak of {given[4]:g} give {right}, not {got!r}"
            )
    print("yes: two claims checked, one of them impossible")


def fewest(function: Callable[..., Any]) -> None:
    """Check exercise 3 of lesson 08: the fewest devices for a step in a given time."""
    work = scaling.Workload("a network", 1_000_000, 1e8)
    slow = scaling.Cost(arithmetic=1e-4, fixed=1e-3, moving=1e-10)
    fast = scaling.Cost(arithmetic=1e-4, fixed=1e-3, moving=1e-11)
    just = scaling.central(work, slow, 5, 1024 / 5).total
    for cost, seconds, right in (
        (slow, 0.2, 1), (slow, 0.05, 3), (slow, 0.03671, 4), (slow, just, 5), (slow, 0.0185, 10),
        (slow, 0.001, None), (fast, 0.0075, 21), (fast, 0.00665, 35),
    ):  # fmt: skip
        try:
            got = function(work, cost, 1024, seconds)
        except Exception as error:
            return _raised(error)
        if got != right:
            took = "no number of devices" if right is None else counted(right, "device")
            return _not_yet(f"for {1e3 * seconds:g} ms it is {took}, not {got!r}")
    print("yes: eight times, and the fewest devices for each")
