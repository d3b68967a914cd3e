"""Schedules against their rules, and cuts against a search through all: `fit.use` runs them."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_helpers import pipeline, trace
from mgpu_helpers.lessons import networks, schedules
from mgpu_helpers.pipeline.cutting import Cut, StageCost
from mgpu_helpers.pipeline.tasks import Span
from mgpu_helpers.trace import Op, Trace
from mgpu_helpers.trace.records import Allocation

KINDS = {
    "in turn": pipeline.one_by_one,
    "all forward": pipeline.all_forward,
    "one by one": pipeline.one_forward_one_backward,
}
DENSE = networks.Network("dense", (
    networks.Dense("a", 6, "relu"), networks.Dense("b", 5, "relu"), networks.Dense("c", 4, "relu"),
    networks.Dense("d", 3),
), (7,))  # fmt: skip
few = settings(max_examples=40, deadline=None)
sizes = {"p": st.integers(1, 6), "m": st.integers(1, 12), "kind": st.sampled_from([*KINDS])}


# Schedules


@few
@given(**sizes)
def test_a_schedule_has_every_task_once_and_holds_and_takes_what_it_says(p, m, kind):
    schedule = KINDS[kind](p, m)
    times = schedules.run_times(schedule)
    assert len(schedule) == p and schedules.check(schedule) == m
    wanted = Counter(f"{kind}{k}" for kind in "FB" for k in range(m))
    assert all(Counter(steps) == wanted for steps in schedule)
    for s, steps in enumerate(schedule):
        holds = list(itertools.accumulate(1 if step[0] == "F" else -1 for step in steps))
        most = {"in turn": 1, "all forward": m, "one by one": min(m, p - s)}[kind]
        assert max(holds) == most and holds[-1] == 0
    end = max(end for _, end in times.values())
    assert end == (2 * p * m if kind == "in turn" else 2 * (m + p - 1))


@few
@given(**sizes, data=st.data())
def test_run_times_keep_to_the_rules(p, m, kind, data):
    costs = st.lists(st.floats(0.1, 9), min_size=p, max_size=p)
    forward, backward = data.draw(costs), data.draw(costs)
    where = data.draw(st.none() | st.lists(st.sampled_from("abc"), min_size=p, max_size=p))
    schedule = KINDS[kind](p, m)
    times = schedules.run_times(schedule, forward, backward, where)
    assert len(times) == 2 * p * m
    for (s, step), (start, end) in times.items():
        assert end == start + (forward if step[0] == "F" else backward)[s]
        before = s - 1 if step[0] == "F" else s + 1
        needed = [(before, step)] if 0 <= before < p else []
        needed += [(s, "F" + step[1:])] if step[0] == "B" else []
        assert all(times[need][1] <= start for need in needed)
    devices = where or range(p)
    for device in set(devices):
        own = sorted(span for (s, _), span in times.items() if devices[s] == device)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(own))


def test_of_two_tasks_that_could_start_on_a_device_the_one_that_goes_back_does():
    for kind, wanted in (("all forward", "F0 F1 F0 F1 B0 B0 B1 B1"),
                         ("one by one", "F0 F1 F0 B0 B0 F1 B1 B1")):  # fmt: skip
        found = schedules.run_times(KINDS[kind](2, 2), devices=["one", "one"])
        assert " ".join(task for _, task in found) == wanted
    mixed = [*KINDS["all forward"](2, 3), *KINDS["in turn"](1, 3)]
    found = list(schedules.run_times(mixed, [2, 1, 1], devices=["other", "one", "one"]))
    assert found.index((2, "B0")) < found.index((1, "F1"))  # though its stage comes later


@pytest.mark.parametrize("schedule, named", [
    ([["B0", "F0"]], "stage 0 cannot do B0 as its task 1: it needs F0 of stage 0"),
    ([["F0", "B0", "F1", "B1"], ["F0", "F1", "B0", "B1"]], "task 2: it needs B0 of stage 1"),
    ([["F0", "F1", "B0"]], "stage 0 .* F0 F1 B0"), ([["F0", "B0"], ["F0", "B0", "B0"]], "stage 1"),
    ([["F0", "B0"], []], "stage 1 does nothing"), ([["F0", "B0", "F00", "B00"]], "F00"),
])  # fmt: skip
def test_an_order_that_cannot_run_is_refused_with_its_task(schedule, named):
    with pytest.raises(ValueError, match=named):
        schedules.check(schedule)


def test_stages_of_the_lessons_networks_compute_what_the_whole_does(plan):
    weights, x = networks.initial(DENSE, 3), np.random.default_rng(0).random((5, 7), np.float32)
    out = x
    for stage in networks.stages(DENSE, [*"bcd"], plan.devices * 2, seed=3):
        out = stage.function(stage.weights, out)
    np.testing.assert_allclose(out, networks.logits(DENSE, weights, x), rtol=1e-6)


# In a trace


def test_a_task_starts_with_its_work_and_not_with_a_look_at_shapes():
    step = trace.Trace((
        trace.Op("stage_0/F0/MatMul", "MatMul", "/CPU:1", 0.0, 0.01),
        trace.Op("stage_0/B0/ShapeN", "ShapeN", "/CPU:0", 0.01, 1e-5),
        trace.Op("stage_1/F0/MatMul", "MatMul", "/CPU:2", 0.01, 0.02),
        trace.Op("stage_0/B0/MatMul", "MatMul", "/CPU:1", 0.03, 0.01),
    ), (), {}, ())  # fmt: skip
    found = pipeline.spans(step)
    assert len(found) == 3 and found[-1] == Span(0, "B0", "/CPU:1", 0.03, pytest.approx(0.01))


# Where to cut


def by_hand(ops, edges, allocations=(), waits=()):
    """Make a trace of operations (name, seconds, bytes, type), one after the other."""
    made, at = [], 0.0
    for name, seconds, size, *kind in ops:
        made.append(Op(name, kind[0] if kind else "Any", "/CPU:1", at, seconds, size))
        at += seconds
    return Trace(
        tuple(made), (), {}, tuple(sorted({*edges, *waits})), tuple(allocations), tuple(waits)
    )


numbers = st.integers(0, 50)


@st.composite
def models_by_hand(draw):
    """Draw layers with costs, connections that skip some, and what their operations hold."""
    n = draw(st.integers(1, 6))
    costs = draw(st.lists(st.tuples(numbers, numbers, st.integers(0, 3)), min_size=n, max_size=n))
    skips = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))))
    skips = {(min(pair), max(pair)) for pair in skips} | {(i, i + 1) for i in range(n - 1)}
    held = draw(st.lists(st.tuples(st.integers(0, n - 1), st.booleans(), numbers, numbers,
                                   st.integers(1, 9), st.booleans()), max_size=12))  # fmt: skip
    lies = draw(st.lists(numbers, min_size=n, max_size=n))
    return costs, {(i, k) for i, k in skips if i < k}, held, lies


@settings(max_examples=100, deadline=None)
@given(model=models_by_hand(), data=st.data())
def test_the_best_cut_is_that_of_a_search_through_all(model, data):
    costs, skips, held, lies = model
    n = len(costs)
    p = data.draw(st.integers(1, n))
    layers = [f"layer{i}" for i in range(n)]
    back = [f"gradients/{layer}/up_grad/Down" for layer in layers]
    ops = [(f"{layer}/up", c[0], c[2]) for layer, c in zip(layers, costs, strict=True)]
    ops += [(name, c[1], 7) for name, c in reversed([*zip(back, costs, strict=True)])]
    edges = {(f"layer{i}/up", f"layer{k}/up") for i, k in skips}
    edges |= {(f"layer{i}/up", name) for i, name in enumerate(back)}
    edges |= set(itertools.pairwise(reversed(back)))
    allocations = [
        Allocation(back[i] if is_back else f"layer{i}/up", "/CPU:1", size, start, start + length,
                   scratch)
        for i, is_back, size, start, length, scratch in held
    ]  # fmt: skip
    step = by_hand(ops, edges, allocations)

    def cost(starts, by):
        at = [0, *starts, n]
        own = [range(a, b) for a, b in itertools.pairwise(at)]
        if by == "time":
            return max(sum(costs[i][0] + costs[i][1] for i in part) for part in own)
        if by == "bytes":
            return sum(2 * costs[i][2] for border in starts for i in range(border)
                       if any((i, k) in skips for k in range(border, n)))  # fmt: skip
        live = [
            max([0] + [sum(size for i, _, size, start, length, scratch in held if i in part
                           and start <= moment < start + length and not scratch)
                       for moment in range(60)]) + sum(lies[i] for i in part)
            for part in own
        ]  # fmt: skip
        return max(live)

    among = list(itertools.combinations(range(1, n), p - 1))
    on_hand = dict(zip(layers, lies, strict=True))
    assert [each.starts for each in pipeline.cuts(step, layers, p)] == [
        tuple(layers[i] for i in starts) for starts in among
    ]
    for by in ("time", "memory", "bytes"):
        best = pipeline.best_cut(step, ["/CPU:1"] * p, layers, by=by, held=on_hand)
        got = {
            "time": max(part.seconds for part in best.parts),
            "memory": max(part.bytes for part in best.parts),
            "bytes": sum(part.crossing for part in best.parts),
        }[by]
        least = min(cost(starts, by) for starts in among)
        assert got == pytest.approx(least)
        assert got == pytest.approx(cost([layers.index(name) for name in best.starts], by))
        assert sum((part.layers for part in best.parts), ()) == tuple(layers)


def test_what_has_no_scope_belongs_where_it_comes_from():
    """A pool, a sum over a skipped layer, a loss with its labels, an optimizer.

    Over a border a tensor counts once, there and back. What only waits carries nothing, and what
    only the backward pass uses is not sent on.
    """
    forward = [
        ("c/shape", 1, 1, "Const"), ("x", 1, 1000, "Placeholder"), ("labels", 1, 1000),
        ("a/kernel", 1, 1), ("read", 1, 1), ("a/Up", 10, 100), ("pool", 20, 30), ("b/Up", 40, 50),
        ("side", 3, 7), ("Add", 80, 60), ("c/Up", 160, 5), ("Mean", 320, 4),
    ]  # fmt: skip
    back = [
        ("gradients/Mean_grad/Tile", 1000, 9), ("gradients/c/Up_grad/Down", 2000, 9),
        ("gradients/b/Up_grad/Down", 4000, 9), ("gradients/AddN", 8000, 9),
        ("gradients/pool_grad/PoolGrad", 16000, 9), ("gradients/a/Up_grad/Down", 32000, 9),
        ("SGD/update_a/kernel", 64000, 9), ("SGD/more", 128000, 9),
    ]  # fmt: skip
    ways = [
        ["x", "a/Up", "pool", "b/Up", "Add", "c/Up", "Mean", *(name for name, *_ in back)],
        ["a/kernel", "read", "a/Up", "side", "Mean"], ["pool", "Add"], ["labels", "Mean"],
        ["c/shape", "c/Up"], ["pool", "gradients/pool_grad/PoolGrad"],
        ["a/Up", "gradients/c/Up_grad/Down", "gradients/AddN"],
        ["gradients/c/Up_grad/Down", "SGD/more"],
    ]  # fmt: skip
    edges = [pair for way in ways for pair in itertools.pairwise(way)]
    waits = [("a/Up", "c/Up"), ("a/Up", "Mean"), ("b/Up", "side")]
    (found,) = pipeline.cuts(by_hand(forward + back, edges, (), waits), ["a", "b", "c"], 3)
    assert [part.crossing for part in found.parts] == [2 * (30 + 7), 2 * (60 + 7), 0]
    assert [part.seconds for part in found.parts] == [
        2 + 10 + 20 + 3 + 16000 + 32000 + 64000 + 128000, 40 + 80 + 4000 + 8000,
        1 + 160 + 320 + 1000 + 2000,
    ]  # fmt: skip
    assert repr(found).endswith("74 B cross, 134 B cross")


def test_a_model_with_a_loop_can_be_cut(tf, plan):
    """What a loop hands on to its next round comes round to where it began."""
    with tf.Graph().as_default(), tf.device(plan.devices[0]):
        with tf.name_scope("a"):
            x = tf.sqrt(tf.random.uniform([50, 50]))
        _, x = tf.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, tf.matmul(x, x)), [0, x])
        with tf.name_scope("b"):
            fetched = tf.sqrt(x)
        with tf.compat.v1.Session(config=plan.session_config()) as session:
            _, step = trace.session_step(session, fetched)
    (found,) = pipeline.cuts(step, ["a", "b"], 2)
    assert [part.crossing for part in found.parts] == [2 * 4 * 50 * 50, 0]
    assert found.parts[0].seconds > sum(op.length for op in step.ops if op.type == "MatMul")


@pytest.mark.parametrize("given, named", [
    (dict(by="speed"), "'speed'"), (dict(devices="abc"), "3 stages"),
    (dict(layers=["a", "z"]), "'z'"), (dict(held={"b": 1, "b/kernel": 1}), "'b/kernel'"),
])  # fmt: skip
def test_a_cut_that_cannot_be_found_is_refused(given, named):
    step = by_hand([("a/Up", 1, 1), ("b/Up", 1, 1)], [("a/Up", "b/Up")])
    with pytest.raises(ValueError, match=named):
        pipeline.best_cut(step, **{"devices": "ab", "layers": ["a", "b"]} | given)


def test_a_cut_of_short_stages_shows_parts_of_milliseconds():
    for seconds, said in ((0.012, 0.001), "12 and 1 ms"), ((0.0004, 0.00125), "0.40 and 1.25 ms"):
        parts = tuple(StageCost(("a",), each, 10**6, 0) for each in seconds)
        assert said in repr(Cut(("b",), parts))


# A Keras model


def test_places_are_where_one_tensor_crosses(keras):
    """An input that is used only behind crosses, too, and a model in the model is one layer."""
    dense = keras.layers.Dense
    one, two = keras.Input((4,)), keras.Input((4,))
    same = dense(4, name="same")
    first = same(one)
    x = keras.layers.Concatenate(name="join")([same(dense(4, name="mid")(first)), first, two])
    model = keras.Model([one, two], [dense(3, name="out")(x), first])
    assert pipeline.places(model) == {"same": ["same", "mid", "join", "out"]}
    inner = keras.Sequential([keras.Input((4,)), dense(4), dense(4)], name="inner")
    nested = keras.Model(one, dense(3, name="last")(keras.ops.relu(inner(first) * 2.0)))
    assert list(pipeline.places(nested)) == [each.name for each in nested.operations[1:]]


@pytest.mark.parametrize("model", ["net", "conv"])
def test_layers_are_known_by_their_plain_names(model):
    """The scopes as Keras writes them, of a model with a name of its own or with that of a layer.

    A constant that both passes and both layers share belongs to none.
    """
    path, shared = f"{model}_1", f"gradient_tape/{model}_1/conv_1/Const"
    forward = [f"{path}/conv_1/Up", f"{path}/conv_1_2/Up", f"{path}/dense_1/Up"]
    back = [f"gradient_tape/{name}" for name in forward]
    times = dict(zip([*forward, *back, shared], (1, 10, 100, 1000, 10**4, 10**5, 0), strict=True))
    ops = [Op(name, "Const" if name == shared else "Any", "/CPU:1", 0.0, float(times[name]), 6)
           for name in times]  # fmt: skip
    edges = {*itertools.pairwise([*forward, *reversed(back)]), *((shared, op) for op in forward)}
    step = Trace(tuple(ops), (), {}, tuple(edges), (), ())
    # A softmax under a loss of Keras that takes its logits runs nothing, and costs nothing.
    layers = {"conv": ["conv"], "conv_1": ["conv_1", "dense"], "softmax": ["softmax"]}
    (cut,) = pipeline.cuts(step, layers, 3)
    assert [part.seconds for part in cut.parts] == [1001, 110110, 0]
    assert [part.crossing for part in cut.parts] == [12, 0, 0]
    with pytest.raises(ValueError, match="the scope 'b'"):
        pipeline.cuts(step, {"b": ["b"]}, 1)


