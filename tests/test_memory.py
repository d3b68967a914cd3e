"""What a step holds: counts against sums by hand and real traces; a monitor that nothing stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fake_driver
from conftest import run_python
from mgpu_helpers import devices, memory, nvml, towers
from mgpu_helpers.lessons import count, networks
from mgpu_helpers.lessons.networks import Conv, Dense, Network, Pool
from mgpu_helpers.memory import Held, Monitor
from mgpu_helpers.trace import Op, Trace, function_step, session_step
from mgpu_helpers.trace.records import Allocation

MB = 10**6
SMALL = Network("small", (Conv("conv", 2, 3, activation="relu"), Pool(), Dense("out", 4)),
                (8, 8, 1))  # fmt: skip
# Bytes an example: conv 8*8*2 floats = 512, pool 4*4*2 = 128 and 32 for what it took, scores 16.
# Most is held where the pool's gradient (128) becomes that of its input (512): 672 + 640.
PER_EXAMPLE = 1312
PARAMETERS = 4 * (3 * 3 * 2 + 2 + 32 * 4 + 4)
D = "/CPU:1"

any_network = st.builds(
    lambda make, width: make(width=width),
    st.sampled_from([networks.jang, networks.tensorlight, networks.p40]),
    st.floats(0.02, 1),
)


@pytest.fixture(scope="session")
def tf(plan):
    import tensorflow

    return tensorflow


def train_step(plan, network, batch, *, keep=1.0, towers_=1, optimizer=None):
    """Trace a training step; give the trace and the names of what makes the weights' gradients.

    By an optimizer's compute_gradients, which has an update wait until the weight has been read;
    with tf.gradients some updates come earlier, and write the new value beside the old one.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    optimizer = optimizer or v1.train.AdamOptimizer()
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [batch, *network.input])
        y = v1.placeholder(tf.int64, [batch])
        with tf.device(plan.devices[0]):
            weights = networks.classic(network)
        values = list(weights.values())

        def tower(images, labels):
            scores = networks.logits(network, weights, images, keep=keep, seed=(1, 2))
            pairs = optimizer.compute_gradients(networks.loss(labels, scores), values)
            return [gradient for gradient, _ in pairs]

        used = plan.devices[:towers_]
        each = towers.run(tower, used, towers.split(x, towers_), towers.split(y, towers_))
        with tf.device(plan.devices[0]):
            mean = each[0] if towers_ == 1 else towers.average(each)
            train = optimizer.apply_gradients(zip(mean, values, strict=True))
        start = v1.global_variables_initializer()
    rng = np.random.default_rng(0)
    feed = {x: rng.random(x.shape, np.float32), y: rng.integers(0, 4, batch)}
    with v1.Session(graph=graph, config=plan.session_config(devices=towers_)) as session:
        session.run(start)
        session.run(train, feed)
        _, trace = session_step(session, train, feed)
    made = {g.op.name for gradients in each for g in gradients}
    made |= {g.op.inputs[0].op.name for gradients in each for g in gradients if g.op.inputs}
    return trace, made


@pytest.fixture(scope="module")
def step(plan):
    return train_step(plan, networks.tensorlight(0.125), 64)


@pytest.fixture(scope="module")
def two_towers(plan):
    return train_step(plan, networks.tensorlight(0.125), 64, towers_=2)


# Counted


def test_a_network_counted_by_hand():
    got = count.predict(SMALL, 7, slots=1, onednn=True)
    assert got == Held(PARAMETERS, PARAMETERS, PARAMETERS, 7 * PER_EXAMPLE)
    assert got.total == 3 * 608 + 7 * 1312
    assert count.predict(SMALL, 1, slots=0).slots == 0 and count.predict(SMALL, 1).slots == 1216
    # Without oneDNN a pool keeps no note of what it took; the ReLU's gradient needs its output.
    assert count.predict(SMALL, 1, onednn=False).activations == 1280
    bare = replace(SMALL, layers=(Conv("conv", 2, 3), *SMALL.layers[1:]))
    # Nobody needs the convolution's output: the pool's gradient is written over it.
    assert count.predict(bare, 1, onednn=True).activations == 1312
    assert count.predict(bare, 1, onednn=False).activations == 512 + 128 + 16 + 128
    leaky = replace(SMALL, layers=(Conv("conv", 2, 3, activation="leaky_relu"), *SMALL.layers[1:]))
    assert count.predict(leaky, 1, onednn=True).activations == 1312 + 512


def test_the_network_counted_by_hand_holds_that_much(plan):
    trace, _ = train_step(plan, SMALL, 2000)
    wanted = PARAMETERS + 2000 * PER_EXAMPLE
    assert trace.peak(D, scratch=False) == pytest.approx(wanted, rel=0.05)


def test_the_peak_of_tensorlight_is_where_its_second_pool_goes_back():
    floats = 6272 + 1568 + 392 + 3136 + 3136 + 784 + 196 + 784 + 3136
    held = count.predict(networks.tensorlight(0.125), 512, onednn=True)
    assert held.activations == 512 * 4 * floats
    assert held.weights == held.gradients == 4 * 105_194 and held.slots == 8 * 105_194


@pytest.mark.parametrize("batch", [32, 200])
@pytest.mark.parametrize(
    "network",
    [networks.tensorlight(0.25), networks.p40(0.1), networks.jang(2400, 0.1), networks.jang(90)],
    ids=lambda network: network.name,
)
def test_the_count_agrees_with_the_trace(plan, network, batch):
    trace, _ = train_step(plan, network, batch)
    held = count.predict(network, batch)
    assert held.gradients + held.activations == pytest.approx(trace.peak(D, False), rel=0.1)


@pytest.mark.isa
@pytest.mark.parametrize("env, onednn", [
    ({"TF_ENABLE_ONEDNN_OPTS": "0"}, False), ({"ONEDNN_MAX_CPU_ISA": "SSE41"}, True),
], ids=["no oneDNN", "SSE41"])  # fmt: skip
def test_the_count_agrees_on_other_processors(env, onednn):
    code = f"""
from mgpu_helpers import devices, memory
from mgpu_helpers.lessons import count, networks
plan = devices.setup(1)
from test_memory import D, train_step
for network in (networks.tensorlight(0.125), networks.p40(0.25), networks.jang(300, 0.125)):
    trace, _ = train_step(plan, network, 100)
    held = count.predict(network, 100, onednn={onednn})
    ratio = (held.gradients + held.activations) / trace.peak(D, scratch=False)
    assert 0.9 < ratio < 1.1, (network, ratio)
    users = {{maker for maker, user in trace.edges}}
    made = {{a.op for a in trace.allocations if a.scratch and "Conv2D" in a.op}}
    kept = {{a.op for a in trace.allocations if not a.scratch}}
    assert made <= kept, made - kept  # an operation that has scratch has its result too
    if not {onednn}:
        assert trace.peak(D) > 3 * trace.peak(D, scratch=False)
        largest = memory.at_peak(trace, D)[0]
        assert largest.scratch and memory.by_use(trace, D).scratch >= largest.bytes
"""
    run_python(code, MGPU_MODE="cores", **env)


@given(any_network, st.integers(0, 3), st.booleans(), st.data())
def test_fits_is_the_boundary_of_predict(network, slots, onednn, data):
    def total(batch):
        return count.predict(network, batch, slots=slots, onednn=onednn).total

    batch = data.draw(st.integers(1, 5000))
    budget = data.draw(st.integers(total(batch), total(batch + 1) - 1))
    assert count.fits(network, budget, slots=slots, onednn=onednn) == batch
    assert isinstance(count.fits(network, 1e12), int)
    with pytest.raises(ValueError, match="do not hold"):
        count.fits(network, total(1) - 1, slots=slots, onednn=onednn)
    assert count.fits(network, total(1), slots=slots, onednn=onednn) == 1


def test_held_prints_a_table():
    held = Held(420_000, 840_000, 420_000, 40_148_536)
    assert repr(held) == (
        "weights       420 kB\nslots         840 kB\ngradients     420 kB\n"
        "activations  40.1 MB\ntotal        41.8 MB"
    )
    assert "scratch" in repr(replace(held, scratch=1)) and held.total == 41_828_536
    assert replace(held, scratch=1).total == 41_828_537


# Measured


def test_a_step_gives_back_all_it_took(tf, plan):
    plain = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    trace, _ = train_step(plan, networks.tensorlight(0.1), 32, optimizer=plain)
    assert trace.memory[D][-1][1] == 0 and all(live >= 0 for _, live in trace.memory[D])
    assert all(a.end is not None for a in trace.allocations)


def test_at_peak_lists_what_the_peak_adds_up(step, two_towers):
    for trace, device in ((step[0], D), (two_towers[0], D), (two_towers[0], "/CPU:2")):
        live = memory.at_peak(trace, device)
        assert sum(a.bytes for a in live) == trace.peak(device)
        assert [a.bytes for a in live] == sorted((a.bytes for a in live), reverse=True)
        largest = next(a for a in live if not a.scratch)  # a convolution may borrow more than it
        assert largest.op.endswith("conv1/Relu") and {a.device for a in live} == {device}
    assert largest.bytes == 4 * 32 * 28 * 28 * 8  # half the batch


sizes = st.integers(1, 9)
spans = st.tuples(st.integers(0, 6), st.one_of(st.none(), st.integers(0, 6)), sizes)


@given(st.lists(spans, min_size=1))
def test_the_peak_is_the_largest_sum_of_what_lives_at_once(drawn):
    from mgpu_helpers.trace.records import curve

    made = tuple(
        Allocation(f"op{i}", D, size, start, None if length is None else start + length)
        for i, (start, length, size) in enumerate(drawn)
    )
    trace = Trace((), (), {D: curve(made)}, (), made)
    live = [
        sum(a.bytes for a in made
            if a.start <= now and (a.end is None or a.end > now or a.start == now))
        for now in range(7)
    ]  # fmt: skip
    assert trace.peak(D) == trace.peak(D, scratch=False) == max(live)
    assert sum(a.bytes for a in memory.at_peak(trace, D)) == max(live)


def test_gradients_are_told_from_activations_by_where_they_flow(step, two_towers):
    """The backward pass keeps a gradient of an input until the weights wait for it: no gradient."""
    for trace, made in (step, two_towers):
        for device in trace.memory.keys() - {"/CPU:0"}:
            live = memory.at_peak(trace, device)
            wanted = sum(a.bytes for a in live if a.op in made and not a.scratch)
            got = memory.by_use(trace, device, weights=11, slots=22)
            assert got.gradients == wanted > 4 * 100_000
            assert (got.weights, got.slots) == (11, 22)
            assert got.total - 33 == trace.peak(device)
            assert got.activations > 4 * 32 * 10_000


def test_gradients_are_found_on_their_way_through_an_average():
    kinds = {
        "relu": "Relu", "back": "MatMul", "slope": "MatMul", "sum": "AddN", "mean": "Mul",
        "norm": "L2Loss", "train": "ResourceApplyAdam", "count": "AssignAddVariableOp",
    }  # fmt: skip
    flows = [("relu", "slope"), ("slope", "sum"), ("sum", "mean"), ("mean", "train"),
             ("back", "relu"), ("slope", "norm"), ("norm", "count")]  # fmt: skip
    waits = [("back", "train"), ("relu", "sum")]
    ops = tuple(Op(name, kind, D, 0, 1) for name, kind in kinds.items())
    made = [Allocation(name, D, 10**i, 0.0, 1.0) for i, name in enumerate(kinds)]
    made.append(Allocation("train", D, 10**8, 0.0, 0.5, scratch=True))
    trace = Trace(ops, (), {D: ((0.0, 111_111_111),)}, tuple(flows + waits), tuple(made),
                  tuple(waits))  # fmt: skip
    # norm flows into a counter, so it counts as one of its updates; what it was made from does not.
    assert memory.by_use(trace, D) == Held(0, 0, 11_111_100, 11, 100_000_000)


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_gradients_are_found_in_todays_code(tf, plan, kind):
    network = networks.tensorlight(0.05)
    weights = networks.variables(network, device=plan.devices[0])
    values = list(weights.values())
    optimizer = getattr(tf.keras.optimizers, kind)()
    with tf.device(plan.devices[0]):
        optimizer.build(values)

    def train(x, y):
        with tf.device(plan.devices[0]):
            with tf.GradientTape() as tape:
                cost = networks.loss(y, networks.logits(network, weights, x))
            optimizer.apply_gradients(zip(tape.gradient(cost, values), values, strict=True))

    images = np.zeros([16, 28, 28, 1], np.float32)
    _, trace = function_step(tf.function(train), images, np.zeros(16, np.int64))
    told = {"MatMul_1": 0, "BackpropFilter": 0, "BiasAddGrad": 0, "MaxPoolGrad": 1,
            "BackpropInput": 1, "MatMul/MatMul": 1, "conv1/Relu": 1, "LeakyRelu": 1}  # fmt: skip
    seen = set()
    for each in trace.allocations:
        found = [end for end in told if each.op.endswith(end)]
        if found and not each.scratch:
            alone = replace(trace, memory={D: ((each.start, each.bytes),)}, allocations=(each,))
            held = memory.by_use(alone, D)
            assert (held.gradients, held.activations)[told[found[0]]] == each.bytes, each
            seen |= set(found)
    assert len(seen) >= 6 and {told[end] for end in seen} == {0, 1}


def test_two_small_batches_tell_the_peak_of_a_large_one(plan):
    """With dropout too, which predict does not count."""
    network = networks.p40(0.25)
    small, large = [32, 64], 256
    peaks = {b: train_step(plan, network, b, keep=None)[0].peak(D, False) for b in [*small, large]}
    fixed, each = memory.line(small, [peaks[b] for b in small])
    assert fixed + each * large == pytest.approx(peaks[large], rel=0.05)


# Asked


def test_the_process_holds_what_it_fills():
    before = memory.process()
    filled = np.ones(8 * MB)
    assert memory.process() - before >= 0.9 * filled.nbytes


def test_the_allocator_of_cores_is_refused(plan):
    for device in (*plan.devices, plan.host, "CPU:1", "/device:CPU:1"):
        with pytest.raises(RuntimeError, match="share one allocator, so each would show the same"):
            memory.allocator(device)
    with pytest.raises(ValueError, match="there is no '/GPU:0' here: use /CPU:1, /CPU:2"):
        memory.allocator("/GPU:0")


@pytest.fixture
def two_gpus(tf, plan, monkeypatch):
    """Stand in for a plan of two GPUs and what TensorFlow says of them."""
    made = devices.Plan("gpus", "/CPU:0", ("/GPU:0", "/GPU:1"), ("a", "b"), 2, "", "")
    monkeypatch.setattr(devices.plan, "_plan", made)
    said = {"GPU:0": {"current": 5, "peak": 9}, "GPU:1": {"current": 6, "peak": 7}}
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", said.__getitem__)


def test_the_allocator_of_a_gpu(two_gpus):
    assert memory.allocator("/GPU:0") == memory.Allocator(now=5, peak=9)
    assert memory.allocator("GPU:1").peak == 7
    with pytest.raises(ValueError, match="there is no '/GPU:7' here: use /GPU:0, /GPU:1"):
        memory.allocator("/GPU:7")
    with Monitor(60) as watched:
        pass
    assert [sample.allocator for sample in watched.samples] == [{"/GPU:0": 5, "/GPU:1": 6}] * 2


# Watched


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.001)


def watching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mgpu-monitor"]


def test_a_monitor_has_a_first_and_a_last_sample_and_leaves_no_thread():
    with Monitor(60) as watched:
        assert len(watched.samples) == 1 and len(watching()) == 1 and watching()[0].daemon
        time.sleep(0.01)
    first, last = watched.samples
    assert 0 <= first.at < 0.01 <= last.at < 30
    assert first.process > 10 * MB and watched.peak == max(first.process, last.process)
    assert not watching()


def test_a_monitor_sees_what_comes_and_goes():
    with Monitor(0.005) as watched:
        with watched.phase("full"):
            filled = np.ones(8 * MB)
            size, now = filled.nbytes, len(watched.samples)
            wait_until(lambda: len(watched.samples) >= now + 2)
        del filled
    assert watched.peak - watched.samples[0].process > 0.9 * size
    assert watched.samples[-1].process < watched.peak - 0.5 * size
    times = [sample.at for sample in watched.samples]
    assert times == sorted(times) and len(times) >= 4
    (phase,) = watched.phases
    assert phase.name == "full" and 0 < phase.start < phase.end < times[-1]


def test_a_monitor_stops_when_its_block_raises_and_keeps_what_it_saw():
    watched = Monitor(0.001)
    with pytest.raises(LookupError), watched, watched.phase("broken"):
        raise LookupError
    assert not watching() and len(watched.samples) >= 2
    assert [phase.name for phase in watched.phases] == ["broken"]


def report(used):
    blank = dict.fromkeys(nvml.Gpu.__dataclass_fields__)
    gpus = (nvml.Gpu(**blank | {"index": i, "memory_used": u}) for i, u in enumerate(used))
    return nvml.DriverReport(tuple(gpus), None if used else "gone.", None, None)


@pytest.mark.parametrize("fault, reason", [
    (report([]), "gone."),
    (OSError("it fell off"), "the driver does not answer any more: it fell off"),
])  # fmt: skip
def test_a_driver_that_fails_midway_does_not_stop_the_samples(monkeypatch, fault, reason):
    answers, asked = [report([7, None]), report([8, 9]), fault], []

    def query():
        asked.append(1)
        answer = answers[len(asked) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(nvml, "query", query)
    with Monitor(0.001) as watched:
        wait_until(lambda: len(watched.samples) >= 6)
    seen = [sample.driver for sample in watched.samples]
    assert seen[:3] == [{0: 7, 1: None}, {0: 8, 1: 9}, {0: None, 1: None}]
    assert seen[3:] == [seen[2]] * (len(seen) - 3)
    assert len(asked) == 3 and watched.reason == reason and not watching()


def test_where_there_is_no_gpu_the_driver_is_asked_once(monkeypatch):
    asked = []
    monkeypatch.setattr(nvml, "query", lambda: asked.append(1) or report([]))
    with Monitor(0.001) as watched:
        wait_until(lambda: len(watched.samples) >= 4)
    assert len(asked) == 1 and watched.reason == "gone."
    assert all(sample.driver == {} for sample in watched.samples)


def test_a_monitor_asks_the_real_nvml_and_does_not_start_tensorflow(tmp_path):
    code = (
        "import sys; from mgpu_helpers.memory import Monitor\n"
        "with Monitor(60) as m: pass\n"
        "print([s.driver for s in m.samples], m.reason, 'tensorflow' in sys.modules)"
    )
    done = run_python(code, LD_LIBRARY_PATH=fake_driver.build(tmp_path))
    each = {0: 2**30, 1: 9 * 2**30, 2: None}
    assert done.stdout == f"{[each, each]} None False\n"


# GPUs that are not there


def test_tensorflows_rules_can_be_tried_without_a_gpu(plan, monkeypatch):
    import tensorflow as tf
    from tensorflow.python.eager import context

    # The stand-in's card has 140 GB.
    card = replace(report([1]).gpus[0], memory_total=143_360 * 2**20)
    monkeypatch.setattr(nvml, "query", lambda: nvml.DriverReport((card,), None, None, None))
    grow = tf.config.experimental.set_memory_growth
    before = tf.config.list_physical_devices()
    with memory.pretend_gpus(2) as (one, two):
        assert tf.config.list_physical_devices("GPU") == [one, two]
        grow(one, True)
        for refused in (lambda: context.context().config, lambda: tf.ones([])):
            with pytest.raises(ValueError, match="Memory growth cannot differ between GPU devices"):
                refused()
        with pytest.raises(ValueError, match="GPU:0 grows, which does not go with a limit: "):
            memory.logical(one, [100])
        grow(one, False)
        with pytest.raises(ValueError, match="100000 . 43361 = 143361 MiB are more than "):
            memory.logical(one, [100_000, 43_361])
        memory.logical(one, [100_000, 43_360])
        with pytest.raises(ValueError, match="Cannot set memory growth on device when virtual dev"):
            grow(one, True)
        limits = [d.memory_limit for d in tf.config.get_logical_device_configuration(one)]
        assert limits == [100_000, 43_360]
    assert tf.config.list_physical_devices() == before
    with tf.device(plan.devices[0]):
        assert (tf.ones([2]) + 1).numpy().tolist() == [2, 2]


def test_the_real_tensorflow_is_back_after_an_error_in_the_block(plan):
    import tensorflow as tf

    with pytest.raises(ZeroDivisionError), memory.pretend_gpus(1):
        raise ZeroDivisionError
    assert not tf.config.list_physical_devices("GPU")


# Bad input


@pytest.mark.parametrize("wrong, said", [
    (lambda: count.predict(SMALL, 0), "batch=0 is not a number of examples: use a .* 1 or more"),
    (lambda: count.predict(SMALL, 2.5), "batch=2.5 is not a number"),
    (lambda: count.predict(SMALL, 1, slots=-1), "slots=-1 is not a number.* 0 or more"),
    (lambda: count.predict(SMALL, 1, slots=True), "slots=True is not a number"),
    (lambda: count.predict(replace(SMALL, layers=(Pool(),)), 1), "small has no weights to train"),
    (lambda: count.fits(SMALL, 3743, onednn=True),
     "3.74 kB do not hold small: one example takes 1.31 kB, and "
     "weights, slots and gradients 2.43 kB"),
    (lambda: count.fits(SMALL, -5), "0 B do not hold small"),
    (lambda: memory.line([8, 8], [1, 2]), r"2 peaks at batches \[8, 8\] give no line"),
    (lambda: memory.line([8], [1]), r"1 peak at batches \[8\] give no line"),
    (lambda: memory.line([8, 16], [1]), "give a peak for each batch"),
    (lambda: memory.at_peak(Trace((), (), {}, ()), D), "no memory of /CPU:1: use one of the dev"),
    (lambda: memory.by_use(Trace((), (), {D: ((0.0, 0),)}, ()), "/CPU:9"), "use one of /CPU:1"),
    (lambda: Monitor(0), "every=0 is no pause: use seconds above 0, such as 0.1."),
    (lambda: Monitor(float("nan")), "every=nan is no pause"),
    (lambda: Monitor(float("inf")), "every=inf is no pause"),
    (lambda: Monitor("1"), "every='1' is no pause"),
    (lambda: memory.logical(None, []), "no limits: give one in MiB"),
    (lambda: memory.logical(None, [100, 0]), "limit=0 is not a number of MiB"),
    (lambda: memory.logical(None, [0.5]), "limit=0.5 is not a number"),
    (lambda: memory.pretend_gpus(0).__enter__(), "n=0 is not a number of GPUs"),
    (lambda: memory.pretend_gpus(65).__enter__(), "n=65 is more than any machine has"),
])  # fmt: skip
def test_sentences(wrong, said):
    with pytest.raises(ValueError, match=said):
        wrong()


def test_what_must_not_happen_to_a_session_with_a_plan(plan):
    with pytest.raises(RuntimeError, match="TensorFlow has started, and a GPU cannot be cut"):
        memory.logical(None, [100])


def test_a_monitor_is_used_once():
    watched = Monitor(60)
    with pytest.raises(RuntimeError, match="phase 'early' is not watched"), watched.phase("early"):
        pass
    with watched, pytest.raises(RuntimeError, match="started before: make another"), watched:
        pass
    assert not watching()
    with pytest.raises(RuntimeError, match="started before: make another"), watched:
        pass
    with pytest.raises(RuntimeError, match="'late' is not watched"), watched.phase("late"):
        pass
    assert len(watched.samples) == 2 and not watched.phases


def test_the_lab_takes_one_gpu_on_which_nobody_else_computes(tmp_path):
    code = """
import os, runpy
lab = runpy.run_path("notebooks/scripts/hold_memory.py")
for os.environ["CUDA_VISIBLE_DEVICES"] in ("0,1,2", "1,2", "1", "MIG-0"):
    number = lab["free_gpu"]()
    print(number, lab["driver"](number) >> 30)
"""
    done = run_python(code, LD_LIBRARY_PATH=fake_driver.build(tmp_path))
    assert done.stdout.splitlines() == ["0 1", "2 0", "None 0", "None 0"]
