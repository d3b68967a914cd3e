"""A step replayed from its trace: by hand, under a GPU's rule and on threads, and real steps."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mgpu_helpers import fit, trace, whatif
from mgpu_helpers.trace import Op, Trace
from mgpu_helpers.trace.records import Collective, Copy, lanes
from mgpu_helpers.whatif import blame, changes, machine
from mgpu_helpers.whatif.machine import Machine
from mgpu_helpers.whatif.model import on_threads
from mgpu_helpers.whatif.work import tasks_of

MS = 1e-3
FREE = Machine(0.0, 0.0)
both = pytest.mark.parametrize("kind", ["CPU", "GPU"])


@pytest.fixture(autouse=True)
def free(monkeypatch, request):
    """Let operations and threads cost nothing, so that hand-made steps can be added by hand."""
    if "plan" not in request.fixturenames:  # real steps cost what they cost
        monkeypatch.setattr(changes, "measured", lambda: FREE)


def made(*spans, edges="", copies=()):
    """Make a trace of (name, device, start, length) in ms; edges as in "ab bc"."""
    ops = sorted((Op(name, name, device, start * MS, length * MS, 1000)
                  for name, device, start, length in spans), key=lambda op: op.start)  # fmt: skip
    return Trace(tuple(ops), copies, {}, tuple((pair[0], pair[1]) for pair in edges.split()))


def five(kind):
    """Make a step of five operations: d needs b and c, and so the first device waits for b."""
    first, second = f"/{kind}:1", f"/{kind}:2"
    return made(("a", first, 0, 4), ("b", second, 4, 6), ("c", first, 4, 2), ("d", first, 10, 3),
                ("e", second, 13, 2), edges="ab ac bd cd de")  # fmt: skip


def waits_of(step):
    """Say by device how many ms it waited for what, and where."""
    return {a.device: {(w.what, w.device): round(w.seconds / MS, 6) for w in a.waits}
            for a in whatif.explain(step).accounts}  # fmt: skip


# ---- by hand


@both
def test_five_operations_on_two_devices_are_replayed_as_by_hand(kind):
    step = five(kind)
    again = whatif.replay(step)
    assert again.a.median == pytest.approx(15 * MS) and again.ratio == pytest.approx(1)
    assert again.b.median == step.length
    for by, wanted in ((3, 11), (6, 11), (0.5, 21)):  # from 3 on, c is what d waits for
        change = whatif.faster(step, "^b$", by=by)
        assert (change.a.median, change.b.median) == pytest.approx((15 * MS, wanted * MS))
        assert change.ratio == pytest.approx(15 / wanted)
    assert repr(whatif.faster(step, "^b$", by=0.5)).endswith("would be 21.0 ms, 1.40 times as slow")
    assert whatif.towers(step, 1, batch=2).b.median == pytest.approx(30 * MS, abs=1e-4)
    late = replace(step, ops=(*step.ops[:-1], replace(step.ops[-1], start=16 * MS)))
    off = -3 / 18 if kind == "CPU" else 0  # a GPU's launch takes as long again
    assert whatif.replay(late).ratio == pytest.approx(1 + off)


def test_what_only_joins_others_takes_no_gpu_and_sends_nothing(monkeypatch):
    step = made(("a", "/GPU:0", 0, 4), ("x", "/GPU:1", 0, 9), ("b", "/GPU:0", 5, 2),
                ("c", "/GPU:0", 9, 3), edges="aj xj jc")  # fmt: skip
    assert whatif.replay(step).a.median == pytest.approx(12 * MS)
    assert whatif.faster(step, "x", 1.5).b.median == pytest.approx(10 * MS)  # b until 7
    monkeypatch.setattr(changes, "measured", lambda: Machine(1 * MS, 0.0))  # an operation's cost
    step = made(("a", "/CPU:1", 0, 4), ("b", "/CPU:1", 4, 5), edges="aj jb")
    assert whatif.replay(step).a.median == pytest.approx((4 + 5 + 3) * MS)


COPY, CORE, OVERHEAD = ("copies", ""), ("a free core", ""), ("overhead", "")
# What a device waited for, in ms, in a step of these spans and edges.
WAITS = {
    "a copy, and what another GPU did first": (
        "/GPU:1", {("a", "/GPU:0"): 3, ("b", "/GPU:0"): 3, COPY: 2}, "bc",
        ("a", 0, 0, 4), ("b", 0, 4, 3), ("c", 1, 9, 3), ("x", 1, 0, 1)),
    "of two that ended at once, the input": (
        "/GPU:3", {("c", "/GPU:2"): 4, ("a", "/GPU:1"): 4}, "ac cd",
        ("a", 1, 0, 4), ("b", 2, 0, 4), ("c", 2, 4, 4), ("d", 3, 8, 1)),
    "a free core, and not overhead": (
        "/CPU:3", {CORE: 4, ("d", "/CPU:1"): 1, OVERHEAD: 1}, "",
        ("a", 1, 0, 4), ("b", 2, 0, 4), ("c", 3, 4, 1), ("d", 1, 6, 1)),
    "overhead": ("/CPU:1", {OVERHEAD: 2}, "", ("a", 1, 0, 4), ("b", 2, 0, 4), ("d", 1, 6, 1)),
    "a thread that went on after 19 us": (
        "/CPU:3", {CORE: 8}, "",
        ("a", 1, 0, 4), ("b", 1, 4.019, 3.981), ("c", 2, 0, 8), ("d", 3, 8, 1)),
    "from 20 us on it was free": (
        "/CPU:3", {CORE: 7.98, OVERHEAD: 0.02}, "",
        ("a", 1, 0, 4), ("b", 1, 4.02, 3.98), ("c", 2, 0, 8), ("d", 3, 8, 1)),
    "a tiny operation that ran late hides nothing": (
        "/CPU:2", {("a", "/CPU:1"): 5.995}, "ab",
        ("a", 1, 0, 6), ("s", 2, 4, 0.005), ("b", 2, 6, 2)),
}  # fmt: skip


@pytest.mark.parametrize("why", WAITS)
def test_what_a_device_waited_for_is_told(why):
    device, wanted, edges, *spans = WAITS[why]
    each = [(name, f"{device[:5]}{place}", *span) for name, place, *span in spans]
    assert waits_of(made(*each, edges=edges))[device] == wanted


@both
def test_every_device_is_told_what_it_waited_for(kind):
    said, one, two = whatif.explain(five(kind)), f"/{kind}:1", f"/{kind}:2"
    assert waits_of(five(kind)) == {one: {("b", two): 4, ("e", two): 2},
                                    two: {("a", one): 4, ("d", one): 3}}  # fmt: skip
    first = re.sub(r"\s+", " ", repr(said)).partition(". ")[0]
    assert first.startswith(f"{one} worked 60 %") and f"27 % for b on {two}" in first


def test_a_host_is_spoken_of_where_it_works_or_is_alone():
    both, host = ["/CPU:0", "/CPU:1"], ["/CPU:0"]
    for place, ran, told in (1, 0.1, both[1:]), (1, 1, both), (0, 0.1, host):
        step = made(("a", "/CPU:0", 0, ran), ("b", f"/CPU:{place}", 1, 9), edges="ab")
        assert [account.device for account in whatif.explain(step).accounts] == told


def test_layers_and_tasks_of_a_pipeline_are_named():
    names = ("stage_0/F0/conv_1/Conv2D", "tower_1/conv_1/conv2/ReluGrad", "m_1/dense_1/MatMul")
    ops = [Op(n, n.rpartition("/")[2], f"/CPU:{i + 1}", 4 * i * MS, 4 * MS)
           for i, n in enumerate(names)]  # fmt: skip
    step = Trace(tuple(ops), (), {}, tuple(zip(names, names[1:], strict=False)))
    third = whatif.explain(step).accounts[2]
    assert {str(wait) for wait in third.waits} == {
        "stage_0/F0 (Conv2D) on /CPU:1", "conv_1 (ReluGrad) on /CPU:2",
    }  # fmt: skip
    named = whatif.explain(step, layers=["conv2"]).accounts[2]
    assert "conv2 (ReluGrad) on /CPU:2" in map(str, named.waits)


def crossing(kind, *sizes, edges="ac bd"):
    """Make a step of two tensors, of so many bytes, that two operations of the next device take."""
    copies = tuple(Copy(name, f"/{kind}:{source}", f"/{kind}:2", size, 0.0, 0.0)
                   for name, source, size in sizes)  # fmt: skip
    spans = [(name, f"/{kind}:{source}", 0, 4) for name, source, _ in sizes]
    return made(*spans, ("c", f"/{kind}:2", 9, 1), ("d", f"/{kind}:2", 10, 1),
                edges=edges, copies=copies)  # fmt: skip


@pytest.mark.parametrize("step, wanted", [
    (crossing("CPU", ("a", 1, 2_000_000), ("b", 3, 2_000_000)), 4 + 2 + 1),  # both roads at once
    (crossing("CPU", ("a", 1, 2_000_000), ("b", 1, 3_000_000)), 4 + 2 + 3 + 1),  # one for both
    (crossing("CPU", ("a", 1, 2_000_000), edges="ac ad"), 4 + 2 + 1 + 1),  # crosses once
    (crossing("GPU", ("a", 1, 1_000_000), edges="ac"), 4 + 1 + 1 + 1),  # not the traced 5 ms
])  # fmt: skip
def test_a_link_carries_one_tensor_at_a_time_and_each_once(step, wanted):
    assert whatif.link(step, 1e9).b.median == pytest.approx(wanted * MS)
    assert whatif.link(step, 1e15).b.median <= whatif.link(step, 1e15).a.median + 1e-7


# ---- what devices do together


def averaged(kind="CPU", work=3, group=0):
    """Make a step of three devices that meet in c1 to c3; the third comes 10 ms after the others.

    Each worked for 10 ms before, the third for 20. The all-reduce takes `work` ms, an update 2. Of
    NCCL's kernels (work None) there is no record.
    """
    spans, given = [("b3", "MatMul", 3, 10, 10)], []
    for i in (1, 2, 3):
        came = 20 if i == 3 else 10
        taken = 0 if work is None else 20 + work - came
        spans += [(f"a{i}", "MatMul", i, 0, 10), (f"c{i}", "CollectiveReduceV2", i, came, taken),
                  (f"u{i}", "AssignSubVariableOp", i, 20 + (work or 3), 2)]  # fmt: skip
        times = came * MS, taken * MS, min(taken, 20 - came) * MS
        given.append(Collective(f"c{i}", f"/{kind}:{i}", 3000, *times, group))
    ops = (
        Op(name, type_, f"/{kind}:{i}", start * MS, length * MS, 3000)
        for name, type_, i, start, length in sorted(spans, key=lambda span: span[3])
    )
    edges = [("a1", "c1"), ("a2", "c2"), ("a3", "b3"), ("b3", "c3")]
    edges += [(f"c{i}", f"u{i}") for i in (1, 2, 3)]
    return Trace(tuple(ops), (), {}, tuple(edges), collectives=tuple(given))


@both
def test_who_comes_early_to_an_all_reduce_waits_for_what_the_last_one_did(kind):
    step = averaged(kind)
    said, late = whatif.explain(step), {("b3", f"/{kind}:3"): 10}
    assert waits_of(step) == {f"/{kind}:1": late, f"/{kind}:2": late, f"/{kind}:3": {}}
    assert [round(a.worked / MS, 6) for a in said.accounts] == [15, 15, 25] and not said.notes
    assert step.busy(f"/{kind}:1") == pytest.approx(15 * MS)
    assert {row.name: row.seconds for row in step.top(by="type")} == pytest.approx(
        {"MatMul": 40 * MS, "CollectiveReduceV2": 9 * MS, "AssignSubVariableOp": 6 * MS}
    )


@both
def test_devices_meet_in_a_replay(kind):
    step = averaged(kind)
    again = whatif.replay(step)
    assert again.a.median == pytest.approx(25 * MS) and again.ratio == pytest.approx(1)
    for pattern, by, wanted in (
        ("b3", 2, 20), ("b3", 1e6, 15), ("a1", 2, 25), ("^c", 3, 23), ("a1", 0.4, 30)
    ):  # fmt: skip
        assert whatif.faster(step, pattern, by).b.median == pytest.approx(wanted * MS, abs=1e-8)
    assert whatif.towers(step, 1, batch=0.5).b.median == pytest.approx(15 * MS, abs=1e-5)
    # Each of three sends 2 * 2/3 of 3,000 bytes: 6 ms, on GPUs in place of the traced 3.
    slow = whatif.link(step, 4000 / (6 * MS))
    assert slow.b.median == pytest.approx((31 if kind == "CPU" else 28) * MS)
    with pytest.raises(ValueError, match=f"/{kind}:1, /{kind}:2, /{kind}:3"):
        whatif.towers(step, 2, bytes_per_second=1e9)


@pytest.mark.parametrize("kind, crossed", [
    ("NcclAllReduce", 4000), ("CollectiveGatherV2", 2000), ("CollectiveReduceScatterV2", 6000),
])  # fmt: skip
def test_a_ring_of_three_carries_what_its_kind_needs(kind, crossed):
    step = averaged()
    ops = [replace(op, type=kind) if op.name[0] == "c" else op for op in step.ops]
    slow = whatif.link(replace(step, ops=tuple(ops)), 1e6)  # each has 3,000 bytes at the end
    assert slow.b.median == pytest.approx((25 + crossed / 1000) * MS)


def test_a_collective_takes_no_thread():
    assert max(on_threads(tasks_of(averaged()), 1, FREE)) == pytest.approx((40 + 3 + 6) * MS)


def test_nccl_kernels_without_an_operation_leave_the_wait_and_hide_the_work():
    step = averaged("GPU", work=None)
    said = whatif.explain(step)
    assert waits_of(step)["/GPU:1"] == {("b3", "/GPU:3"): 10, ("copies", ""): 3}
    assert waits_of(step)["/GPU:3"] == {("copies", ""): 3}
    (note,) = said.notes
    assert "NCCL" in note and "/GPU:1, /GPU:2, /GPU:3" in note
    assert whatif.replay(step).a.median == pytest.approx(25 * MS)
    assert whatif.link(step, 4000 / (6 * MS)).b.median == pytest.approx(28 * MS)
    with pytest.raises(ValueError, match="'Collective'"):
        whatif.faster(step, "Collective")


def test_of_collectives_that_cannot_be_matched_the_rest_is_told():
    step = averaged(group=None)
    said = whatif.explain(step)
    assert "CollectiveReduceV2" in said.notes[0] and len(said.notes) == 1
    assert [round(a.worked / MS, 6) for a in said.accounts] == [25, 25, 25]
    for ask in (whatif.replay, lambda step: whatif.faster(step, "b3")):
        with pytest.raises(ValueError, match="CollectiveReduceV2"):
            ask(step)


def training(kind="CPU"):
    """Make a step of one device: a read, a pass forward, one back, an update."""
    ops = (("w/ReadVariableOp", "ReadVariableOp", 0, 1), ("f", "Conv2D", 1, 8),
           ("g", "Conv2DBackpropFilter", 9, 16), ("r", "Mul", 25, 1),
           ("Adam/u", "ResourceApplyAdam", 26, 2))  # fmt: skip
    made = [Op(n, t, f"/{kind}:1", s * MS, d * MS, 4_000_000) for n, t, s, d in ops]
    names = [op.name for op in made]
    return Trace(tuple(made), (), {}, tuple(zip(names, names[1:], strict=False)))


def test_towers_share_the_batch_and_update_once(monkeypatch):
    step = training()
    # 1 + 4 + 8 + 1 + 2 ms; of each of the halved two 3 us stay as they are.
    assert whatif.towers(step, 1, batch=0.5).b.median == pytest.approx(16.003 * MS, abs=1e-8)
    # Over a link weights of 4 MB go to the second device, and a gradient as large comes back.
    for n, more, wanted in ((2, {}, 16), (4, {}, 10), (1, {}, 28), (2, {"batch": 1}, 28),
                            (2, {"bytes_per_second": 1e9}, 24)):  # fmt: skip
        assert whatif.towers(step, n, **more).b.median == pytest.approx(wanted * MS, abs=1e-5)
    assert whatif.towers(training("GPU"), 2, bytes_per_second=1e12).ratio > 1.5
    fed = made(("x", "/CPU:0", 0, 1), ("a", "/CPU:1", 1, 10), edges="xa")
    assert whatif.towers(fed, 2).b.median == pytest.approx(5.5 * MS, abs=1e-5)  # not of the host
    monkeypatch.setattr(changes, "measured", lambda: Machine(0.0, 0.0, adding=8e9))
    # What an update only waits for is not averaged, and would take a while.
    large = tuple(replace(op, bytes=10**9) if op.name == "f" else op for op in step.ops)
    waits = (("f", "Adam/u"),)
    for each in (step, replace(step, ops=large, edges=step.edges + waits, waits=waits)):
        assert whatif.towers(each, 2).b.median == pytest.approx(18 * MS, abs=1e-5)  # 4 times 4 MB


def test_several_traces_give_the_median_of_their_replays():
    steps = [made(("a", "/CPU:1", 0, length)) for length in (4, 10, 5)]
    change = whatif.faster(steps, "a", by=5)
    assert change.b.median == pytest.approx(1 * MS) and change.ratio == pytest.approx(5)
    assert len(whatif.replay(steps).ratios) == 3 and "3 traces" in repr(change)
    with pytest.raises(TypeError):
        whatif.replay([])


@pytest.mark.parametrize("ask, value", [
    (lambda step: whatif.towers(training("GPU"), 2), "bytes_per_second"),
    (lambda step: whatif.towers(step, 2), "/CPU:1, /CPU:2"),
    (lambda step: whatif.faster(step, "b", 0), "by=0"),
    (lambda step: whatif.faster(step, "nowhere"), "'nowhere'"),
    (lambda step: whatif.towers(step, 1, batch=-1), "batch=-1"),
    (lambda step: whatif.link(step, float("inf")), "inf"),
    (lambda step: whatif.towers(step, 0), "n=0"),
])  # fmt: skip
def test_what_cannot_be_asked_is_named(ask, value):
    with pytest.raises(ValueError, match=re.escape(value)):
        ask(five("CPU"))


# ---- what no trace tells


@pytest.mark.parametrize("why, step", [
    ("loop", made(("a", "/CPU:1", 0, 5), ("b", "/CPU:1", 5, 5), edges="ab ba")),
    ("a loop", made(("a", "/CPU:1", 0, 5), ("a", "/CPU:1", 5, 5))),
    ("no kernels", replace(made(("a", "/GPU:0", 0, 5)), launches_only=True)),
    ("no operation", made()), ("1.9 ms", made(("a", "/CPU:1", 0, 1.9))),
])  # fmt: skip
def test_what_the_trace_does_not_tell_is_said_and_not_guessed(why, step):
    said = whatif.explain(step)
    with pytest.raises(ValueError, match=why):
        whatif.replay(step)
    assert why in repr(said) and all(account.waits is None for account in said.accounts)
    assert len(said.accounts) == (not step.launches_only and len(step.devices))


def test_a_device_of_the_plan_that_ran_nothing_is_named(plan):
    said = whatif.explain(made(("a", "/CPU:1", 0, 4)))
    assert said.notes == ("/CPU:2 ran nothing: no operation was placed there.",)
    assert whatif.explain(five("CPU")).notes == () == whatif.explain(five("GPU")).notes


# ---- what always holds


@st.composite
def schedules(draw, kinds=("/CPU:0", "/GPU:0", "/GPU:1")):
    """Lay out operations as a GPU does, in ms: one at a time a device, some late, some tiny."""
    ends, free, spans, edges = [], dict.fromkeys(kinds, 0), [], []
    for i in range(draw(st.integers(2, 10))):
        device = draw(st.sampled_from(kinds))
        needs = draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
        ready = max([free[device], *(ends[j] for j in needs)])
        start = ready + draw(st.sampled_from([0, 0, 0, 1, 5]))
        ends.append(start + draw(st.sampled_from([3, 5, 9, 0.002] if i else [3])))
        free[device] = ends[-1]
        spans.append((chr(97 + i), device, start, ends[-1] - start))
        edges += [chr(97 + j) + chr(97 + i) for j in needs]
    return made(*spans, edges=" ".join(edges))


@settings(max_examples=60, deadline=None)
@given(schedules(), st.integers(0, 9), st.sampled_from([1.5, 4, 1000]))
def test_on_gpus_a_schedule_is_replayed_exactly_and_faster_is_never_slower(step, which, by):
    assume(any(device.startswith("/GPU") for device in step.devices))
    assert whatif.replay(step).a.median == pytest.approx(step.length)
    change = whatif.faster(step, f"^{step.ops[which % len(step.ops)].name}$", by)
    assert change.b.median <= change.a.median * (1 + 1e-9)


def test_operations_that_touch_touch():
    """Whole microseconds, as of kernels: of 12 % of them start + length is above the next start."""
    cuts = np.random.default_rng(0).integers(1, 900, 500).cumsum().tolist()
    ops = [Op(f"k{i}", "Add", "/CPU:1", (20_000 + a) * 1000 / 1e9, (b - a) * 1000 / 1e9)
           for i, (a, b) in enumerate(itertools.pairwise([0, *cuts]))]  # fmt: skip
    assert 20 < sum(a.start + a.length > b.start for a, b in itertools.pairwise(ops))
    assert all(a.end == b.start for a, b in itertools.pairwise(ops)) and len(lanes(ops)) == 1
    step = Trace(tuple(ops), (), {}, ())
    (account,) = whatif.explain(step).accounts
    assert [w.seconds for w in account.waits] == [0.02]  # before the first
    assert step.busy("/CPU:1") == account.worked == cuts[-1] * 1000 / 1e9


@settings(max_examples=60, deadline=None)
@given(schedules() | schedules(kinds=("/CPU:1", "/CPU:2")))
def test_every_moment_of_a_device_is_accounted_for(step):
    said = whatif.explain(step)
    for account in said.accounts:
        assert account.worked == pytest.approx(step.busy(account.device))
        assert account.worked + sum(w.seconds for w in account.waits) == pytest.approx(step.length)
        assert all(wait.seconds > 0 and wait.device != account.device for wait in account.waits)
        shares = [int(n) for n in re.findall(r"(\d+) %", str(account))]
        assert sum(shares) == 100


def test_three_waits_are_named_and_the_others_counted_by_device():
    waits = [blame.Wait(name, f"/CPU:{2 + (name == 'e')}", 0.01) for name in "abcde"]
    said = str(blame.Account("/CPU:1", 0.1, 0.05, tuple(waits)))
    assert said.endswith("10 % for c on /CPU:2, 10 % for 1 other on /CPU:2, 10 % for 1 other on "
                         "/CPU:3.")  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(schedules(kinds=("/CPU:1", "/CPU:2", "/CPU:3")), st.integers(1, 4))
def test_threads_do_no_more_than_there_is_and_no_less_than_one_at_a_time(step, threads):
    total = sum(op.length for op in step.ops)
    took = max(on_threads(tasks_of(step), threads, FREE))
    assert total / threads - 1e-9 <= took <= total + 1e-9


def test_a_thread_takes_the_oldest_of_what_another_left():
    """The first goes on with d, and then with c; the other takes b, which would end at 7 ms."""
    spans = ("a", 0, 1), ("b", 1, 4), ("c", 1, 2), ("d", 3, 3)
    step = made(*((name, "/CPU:1", *span) for name, *span in spans), edges="ab ac ad")
    assert whatif.replay(step).a.median == pytest.approx(6 * MS)


@pytest.mark.parametrize("short, wanted", [(0.0029, 4 + 2.9), (0.003, 4 + (3 + 1) / 2)])
def test_a_thread_does_itself_what_takes_under_three_microseconds(short, wanted):
    """A second one has but the long one to do; of what takes longer it does half."""
    names = [chr(200 + i) for i in range(1000)]
    spans = [(name, "/CPU:1", 4 + short * i, short) for i, name in enumerate(names)]
    edges = " ".join(f"a{name}" for name in [*names, "z"])
    step = made(("a", "/CPU:1", 0, 4), *spans, ("z", "/CPU:1", 4, 1), edges=edges)
    assert whatif.replay(step).a.median == pytest.approx(wanted * MS, rel=1e-2)


@pytest.mark.parametrize("device, start, machine, wanted", [
    ("/CPU:1", 4, Machine(0.0, 2 * MS), 4 + 2 + 5), ("/CPU:1", 9, Machine(0.0, 2 * MS), 4 + 5 + 5),
    ("/CPU:1", 9, Machine(1 * MS, 0.0), 14 + 3), ("/CPU:2", 9, Machine(1 * MS, 0.0), 14 + 3 + 2),
])  # fmt: skip
def test_threads_wake_up_and_operations_cost(monkeypatch, device, start, machine, wanted):
    """One thread, or two where c began beside b; one device sends to another, which receives."""
    monkeypatch.setattr(changes, "measured", lambda: machine)
    spans = ("a", "/CPU:1", 0, 4), ("b", "/CPU:1", 4, 5), ("c", device, start, 5)
    assert whatif.replay(made(*spans, edges="ab ac")).a.median == pytest.approx(wanted * MS)


# ---- real steps


def test_a_model_in_stages_is_asked_about_as_it_is_laid_out(keras, plan):
    layers = [keras.layers.Dense(512, name=name) for name in ("first", "second", "last")]
    model = keras.Sequential([keras.Input([512]), *layers])
    model.compile("sgd", "mse")
    fit.use(model, plan, stages=["second"], pieces=2)
    batch = np.ones([512, 512], "f")
    step = trace.fit_step(model, (batch, batch))
    said = whatif.explain(step)
    assert {*plan.devices} <= {each.device for each in said.accounts}
    assert {plan.devices, plan.devices[::-1]} <= step.bytes_between().keys()  # forward, and back
    assert whatif.faster(step, "second|last", by=4).ratio > 1
    with pytest.raises(ValueError, match="a step that was traced on one device"):
        whatif.towers(step, 2)


def test_waking_up_is_counted_from_the_end_of_what_both_waited_for():
    ops = [Op("join0", "Add", "/CPU:0", 0.0, 4 * MS)]
    for n in range(1, machine.PAIRS):
        start = 10 * n * MS
        ops += [Op(f"pair{n}_0", "MatMul", "/CPU:0", start, 2 * MS),
                Op(f"pair{n}_1", "MatMul", "/CPU:0", start + n * MS, 2 * MS),
                Op(f"join{n}", "Add", "/CPU:0", start + 6 * MS, 1 * MS)]  # fmt: skip
    wakes = machine._wakes(Trace(tuple(ops), (), {}, ()))
    assert wakes == pytest.approx([7 * MS] + [(3 + n) * MS for n in range(2, machine.PAIRS)])
