"""Pictures: nothing clipped, nothing over another, one colour per device, what is asked for."""

from __future__ import annotations

import itertools
import re
import warnings
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

from _cards import Card, Ratio
from _chart import cards
from conftest import later
from mgpu_helpers import charts, devices, memory, pipeline, timing, whatif
from mgpu_helpers.charts.base import HOST, PALETTE, colour, pale
from mgpu_helpers.lessons import drawings, schedules
from mgpu_helpers.lessons.state import share_of_weights, weights_held
from mgpu_helpers.memory import MemoryUse, Monitor
from mgpu_helpers.memory.predicting import Predicted
from mgpu_helpers.memory.watch import Phase, Sample
from mgpu_helpers.trace import Op, Trace
from mgpu_helpers.trace.log import Placed, Placement
from mgpu_helpers.trace.records import Allocation, Copy

matplotlib.use("Agg")
MB, EMPTY = 10**6, Trace((), (), {}, ())
PLAN = devices.Plan("cores", "/CPU:0", ("/CPU:1",), ("one core",), 2, "AMD EPYC, 2 cores", "")


@pytest.fixture(autouse=True)
def close_figures(monkeypatch):
    monkeypatch.setattr(devices.plan, "_plan", PLAN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a layout that does not fit is only warned about
        yield
    plt.close("all")


def step_of(*ops, edges=(), **more):
    """Make the trace of operations, each (type, device, start, length), or (name, ...)."""
    made = [Op(*op) if len(op) > 4 else Op(f"{i}", *op) for i, op in enumerate(ops)]
    return replace(EMPTY, ops=tuple(made), edges=tuple(edges), **more)


def towers(n):
    """Make the trace of n towers: two operations each, one overlapping, and a sum on the host."""
    ops, copies, edges, memory = [("total", "AddN", "/CPU:0", 0.006, 0.001)], [], [], {}
    for i in range(1, n + 1):
        d, scope = f"/CPU:{i}", f"tower_{i}/"
        given, product, beside, number = (
            scope + name for name in ("given", "a_long_name/product", "beside", "number")
        )
        ops += [(given, "RandomUniform", d, 0.0, 0.001), (product, "MatMul", d, 0.001, 0.004),
                (beside, "Relu", d, 0.002, 0.001), (number, "Const", d, 0.0, 0.0001)]  # fmt: skip
        edges += [(given, product), (number, beside), (given, beside), (product, "total")]
        copies.append(Copy(product, d, "/CPU:0", 360000, 0.005, 0.001))
        memory[d] = ((0.0, 0), (0.001, 2_400_000 * i), (0.005, 0))
    return step_of(*ops, edges=edges, copies=tuple(copies), memory=memory)


def placed(trace):
    found = Placement()
    found.rows = tuple(Placed(op.name, op.type, op.device) for op in trace.ops)
    return found


def layered(layers, devices=1, towers=False, net="net_1"):
    """Make the trace of a Keras step with so many layers, in towers or laid over the devices."""
    ops, edges, copies = [], [], []
    for t in range(devices if towers else 1):
        scope = f"tower_{t}/" if towers else ""
        maker, at = f"{scope}x", "/CPU:0"
        ops.append((maker, "Placeholder", at, 0.0, 1e-6, 640))
        for i in range(layers):
            device, n = f"/CPU:{1 + (t if towers else i * devices // layers)}", t * layers + i
            name, start = f"{scope}{net}/layer_{i}_1", 1e-3 * i
            given, read, run = f"outside_{n}/w", f"{name}/Read", f"{name}/MatMul"
            back, update = f"gradient_tape/{run}_grad", f"adam/mul_{n}"
            ops += [(given, "VarHandleOp", device, 0.0, 1e-6),
                    (read, "ReadVariableOp", device, 1e-6, 1e-6, 400),
                    (run, "MatMul", device, start, 1e-3 * (1 + i % 7), 1000 * (i % 5)),
                    (back, "MatMul", device, 2e-3 * layers - start, 1e-3, 400),
                    (update, "Mul", device, 1e-3 * layers, 1e-4, 400)]  # fmt: skip
            edges += [(given, read), (read, run), (maker, run), (run, back), (back, update)]
            if at != device:
                copies.append(Copy(f"{maker}:0", at, device, 640, start, 0.0))
            maker, at = run, device
    return step_of(*sorted(ops, key=lambda op: op[3]), edges=edges, copies=tuple(copies))


def watched(gpus, phases):
    """Make a monitor that saw so many GPUs for four seconds; one of them stops answering."""
    made = Monitor()
    made._samples = [
        Sample(t, (300 + 50 * t) * MB, {g: None if g and t > 2 else (900 + g) * MB for g in gpus},
               {f"/GPU:{g}": 100 * t * MB for g in gpus})
        for t in range(5)
    ]  # fmt: skip
    made.phases = [Phase(*phase) for phase in phases]
    return made


def ran(jobs, wall):
    """Make what the chart reads of a report of jobs, from their values in order."""
    fields = "name kind device slot start end status".split()
    made = [dict(zip(fields, job, strict=True), devices=job[2:3]) for job in jobs]
    return SimpleNamespace(jobs=[SimpleNamespace(**job) for job in made], wall=wall)


def in_pieces(stages, pieces, places):
    """Make the trace of a schedule whose tasks take a millisecond, with a constant at the start."""
    order = pipeline.one_forward_one_backward(stages, pieces)
    times = schedules.run_times(order, devices=places)
    ops = [
        (f"stage_{s}/{task}/work", "MatMul", places[s], start / 1e3, (end - start) / 1e3)
        for (s, task), (start, end) in times.items()
    ]
    constant = "stage_0/B0/zero", "Const", places[0], 0.0, 1e-6
    return step_of(*ops, constant, ("split", "Split", "/CPU:0", 0.0, 1e-5))


HELD = {
    "batch 128, counted": MemoryUse(2 * MB, 4 * MB, 2 * MB, 30 * MB),
    "batch 128, measured": MemoryUse(2 * MB, 4 * MB, 1 * MB, 31 * MB, 50 * MB),
    "batch 1": MemoryUse(2 * MB, 4 * MB, 2 * MB, 0),
}
PHASES = [("import TensorFlow", 0.0, 0.3), ("build the graph", 0.7, 0.9), ("train", 1.2, 3.9),
          ("free everything", 3.9, 4.0)]  # fmt: skip
QUEUE = ran([
    ("train", "core", 4, 0, 0.1, 3.2, "done"),
    ("missing", "core", 10, 0, 0.1, 0.15, "failed"),
    ("slow", "core", 10, 0, 0.16, 2.16, "timed out"),
    ("a_name_much_longer_than_the_picture_has_room_for", "core", 10, 0, 2.2, 2.4, "done"),
    ("last", "core", 4, 0, 3.4, 3.5, "stopped"),
    ("never", None, None, None, None, None, "not started"),
], 3.5)  # fmt: skip
DRAW = {
    **{kind: lambda ax=None, kind=kind: getattr(charts, kind)(towers(8), ax)
       for kind in ("placement_map", "timeline", "live_bytes", "blame")},
    "layers": lambda ax=None: charts.timeline(towers(8), ax, by="layer"),
    "held": lambda ax=None: charts.held(HELD, ax),
    "monitor": lambda ax=None: charts.monitor(watched((), PHASES), ax),
    "GPUs": lambda ax=None: charts.monitor(watched((0, 1), PHASES[2:3]), ax),
    "jobs": lambda ax=None: charts.jobs(QUEUE, ax),
    "stages": lambda ax=None: charts.pipeline(in_pieces(4, 2, ["/CPU:1", "/CPU:2"] * 2), ax),
}  # fmt: skip
NOTHING = {
    "held": lambda: charts.held({}),
    "monitor": lambda: charts.monitor(Monitor()), "jobs": lambda: charts.jobs(ran([], 0)),
    "placement": lambda: charts.placement_map(Placement()),
    **{kind: lambda kind=kind: getattr(charts, kind)(EMPTY)
       for kind in ("placement_map", "timeline", "live_bytes", "blame", "pipeline")},
}  # fmt: skip


def texts(ax):
    """List every text of a figure that shows something, drawn, with its place."""
    figure = ax.figure
    figure.canvas.draw()
    shown = [t for t in figure.findobj(matplotlib.text.Text) if t.get_visible() and t.get_text()]
    low, high = sorted(ax.get_xlim()), sorted(ax.get_ylim())
    ticks = [(ax.get_xticks(), low, ax.get_xticklabels()), (ax.get_yticks(), high,
             ax.get_yticklabels())]  # fmt: skip
    hidden = {id(label) for at, (a, b), labels in ticks for t, label in zip(at, labels, strict=True)
              if not a <= t <= b or not ax.axison}  # fmt: skip
    return [(t.get_text(), t.get_window_extent()) for t in shown if id(t) not in hidden]


def inside_and_apart(ax):
    seen = texts(ax)
    width, height = ax.figure.canvas.get_width_height()
    for text, box in seen:
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1, text
    for (text, box), (other, beside) in itertools.combinations(seen, 2):
        assert not box.overlaps(beside), (text, other)
    return [text for text, _ in seen]


@pytest.mark.parametrize("name", DRAW)
def test_texts_are_inside_the_figure_and_apart(name):
    assert PLAN.corner in inside_and_apart(DRAW[name]())
    figure, ax = plt.subplots()
    assert DRAW[name](ax) is ax
    assert len(ax.texts) + len(ax.collections) + len(ax.lines) + len(ax.patches) >= 1
    assert not figure.texts  # the corner belongs to figures that the series makes


@pytest.mark.parametrize("name", NOTHING)
def test_nothing_draws_empty_axes(monkeypatch, name):
    monkeypatch.setattr(devices.plan, "_plan", None)
    ax = NOTHING[name]()
    assert not ax.figure.texts  # no plan, no corner
    inside_and_apart(ax)


# Colours


def test_one_colour_per_device_and_grey_for_the_host():
    cpus, gpus = ([colour(f"/{kind}:{i}") for i in range(10)] for kind in ("CPU", "GPU"))
    assert cpus[0] == HOST and len(set(cpus)) == 9
    assert gpus[:9] == cpus[1:]  # the first device looks the same in every mode


# Steps


def labels_of(ax):
    return [text.get_text() for text in ax.texts if text.get_text()]


def shade_of(patch):
    return matplotlib.colors.to_hex(patch.get_facecolor())


def rows_of(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


def bars_of(ax):
    """List the bars of a timeline: colour, start and end in ms, rounded; and their boxes."""
    found, boxes = [], []
    for lane in ax.collections:
        boxes += [path.get_extents() for path in lane.get_paths()]
        shades = np.resize(lane.get_facecolor(), (len(lane.get_paths()), 4))
        found += map(matplotlib.colors.to_hex, shades)
    ends = ((round(box.x0, 6), round(box.x1, 6)) for box in boxes)
    return [(shade, *each) for shade, each in zip(found, ends, strict=False)], boxes


def test_timeline_shows_the_share_and_keeps_overlaps_apart():
    ax = charts.timeline(towers(1))
    assert rows_of(ax) == ["/CPU:0\n14% busy", "/CPU:1\n71% busy"] and ax.yaxis_inverted()
    assert ax.get_xlim() == (0, pytest.approx(7.0))
    bars, boxes = bars_of(ax)
    assert len(boxes) == 5 and {bar[0] for bar in bars} == {colour("/CPU:0"), colour("/CPU:1")}
    for one, other in itertools.combinations(boxes, 2):
        apart = one.x1 <= other.x0 + 1e-9 or other.x1 <= one.x0 + 1e-9
        assert apart or one.y1 <= other.y0 or other.y1 <= one.y0
    # Ten thousand operations are a few shapes: a call for each would take half a minute.
    ops = (("Add", f"/CPU:{1 + i % 2}", 1e-3 * i, 1e-3) for i in range(10_000))
    ax = charts.timeline(step_of(*ops))
    assert [len(lane.get_paths()) for lane in ax.collections] == [5000, 5000]


def test_a_timeline_by_layer_makes_one_bar_of_neighbours_and_names_what_has_room():
    ops = [("a_1/x", 0, 20), ("a_1/y", 20, 30), ("long_name_of_a_layer_1/x", 50, 9),
           ("bb_1/x", 60, 30), ("bb_1/y", 99, 1)]  # fmt: skip
    made, inside = (step_of(*((f"{net}/{n}", "Add", "/CPU:1", s / 1e3, e / 1e3) for n, s, e in ops))
                    for net in ("net_1", "big_1/net_1"))  # fmt: skip
    assert labels_of(charts.timeline(inside, by="layer", depth=2)) == ["a", "bb"]
    ax = charts.timeline(made, by="layer")
    shades, *places = zip(*bars_of(ax)[0], strict=True)
    assert places == [(0, 50, 60, 99), (50, 59, 90, 100)]
    assert shades == (colour("/CPU:1"), pale(colour("/CPU:1"))) * 2
    assert labels_of(ax) == ["a", "bb"]  # the others have no room
    for text, (left, right) in zip(ax.texts, [(0, 50), (60, 90)], strict=True):
        box = text.get_window_extent().transformed(ax.transData.inverted())
        assert left <= box.x0 and box.x1 <= right
    assert len(bars_of(charts.timeline(made, by="type"))[0]) == 3  # a wait of a ms stays one


def test_blame_draws_work_then_waits_by_name_and_counts_the_others():
    spans = ("a", 2, 0, 6), ("b", 3, 6, 5), ("c", 4, 11, 4), ("d", 5, 15, 3), ("e", 1, 18, 2)
    ops = [(name, "Add", f"/CPU:{i}", start / 1e3, ms / 1e3) for name, i, start, ms in spans]
    chain = step_of(*ops, edges=itertools.pairwise("abcde"))
    ax = charts.blame(chain, shown=2)
    drawn = [(text, round(bar.get_x(), 6), round(bar.get_width(), 6), shade_of(bar))
             for text, bar in zip(labels_of(ax), ax.patches, strict=False)]  # fmt: skip
    assert drawn[:4] == [
        ("works", 0, 2, colour("/CPU:1")), ("a", 2, 6, pale(colour("/CPU:2"))),
        ("b", 8, 5, pale(colour("/CPU:3"))), ("others (2)", 13, 7, "#b0b0b0"),
    ]  # fmt: skip
    assert rows_of(ax)[0] == "/CPU:1\n10% at work" and ax.get_title("right") == ""
    named = [text.get_text() for text in ax.get_legend().get_texts()]
    assert "waits for /CPU:2" in named and len(named) == len({*named})
    one = step_of(*(op if op[2] == "/CPU:1" else (*op[:2], "/CPU:2", *op[3:]) for op in ops),
                  edges=itertools.pairwise("abcde"))  # fmt: skip
    # All others for one device.
    assert shade_of(charts.blame(one, shown=2).patches[3]) == pale(colour("/CPU:2"))
    alone = ("a", "Add", "/CPU:1", 0, 1)
    loop = charts.blame(step_of(alone, edges=["aa"]))
    assert loop.get_title("right") == "waits not known" and len(loop.patches) == 1
    launched = step_of(alone, launches_only=True)
    assert not charts.blame(launched).patches
    assert "launches, not kernels" in charts.timeline(launched).get_title("right")


def test_live_bytes_draws_megabytes_and_marks_where_the_backward_pass_begins():
    ax = charts.live_bytes(towers(2))
    assert [max(line.get_ydata()) for line in ax.lines] == [2.4, 4.8]
    assert [line.get_xdata()[-1] for line in ax.lines] == [pytest.approx(7.0)] * 2
    assert [line.get_color() for line in ax.lines] == [colour("/CPU:1"), colour("/CPU:2")]
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["/CPU:1, peak 2.4 MB", "/CPU:2, peak 4.8 MB"]
    names = ["gradients/Shape", "logits/MatMul", "gradients/BroadcastGradientArgs",
             "gradients/logits/MatMul_grad/MatMul", "train/NoOp"]  # fmt: skip
    ops = ((n, n.split("/")[-1], "/CPU:1", 1e-3 * i, 1e-3) for i, n in enumerate(names))
    ax = charts.live_bytes(step_of(*ops, memory={"/CPU:1": ((0.0, 4), (5e-3, 0))}))
    assert list(ax.lines[-1].get_xdata()) == [pytest.approx(3.0)] * 2
    assert labels_of(ax) == ["backward pass"]


def test_a_pipeline_has_a_frame_for_each_task_under_its_name():
    ax = charts.pipeline(in_pieces(2, 4, ["/CPU:1", "/CPU:2"]))
    assert rows_of(ax) == ["/CPU:1, stage 0\n20% idle", "/CPU:2, stage 1\n20% idle"]
    drawn = [c for c in ax.collections if isinstance(c, matplotlib.collections.PolyCollection)]
    frames = [c for c in drawn if not len(c.get_facecolor())]
    bars = [c for c in drawn if len(c.get_facecolor())]
    assert len(bars) == len(frames) == 16  # no constant, and nothing of the host
    assert sorted(labels_of(ax)) == sorted("F0 F1 F2 F3 B0 B1 B2 B3".split() * 2)
    for text in ax.texts:
        x, y = text.get_position()
        (under,) = [bar for bar in bars if bar.get_paths()[0].contains_point((x, y + 0.3))]
        assert (text.get_text()[0] == "F") == (under.get_alpha() == 1)
    ax = charts.pipeline(in_pieces(4, 2, ["/CPU:1", "/CPU:2"] * 2))
    assert "0:F1" in labels_of(ax) and rows_of(ax)[0].startswith("/CPU:1, stages 0, 2\n")


@pytest.mark.parametrize("use", [
    charts.timeline, charts.placement_map, charts.live_bytes, charts.blame, charts.pipeline,
    whatif.explain, whatif.replay, lambda step: memory.by_use(step, "/CPU:1"),
    lambda step: memory.at_peak(step, "/CPU:1"), lambda step: pipeline.cuts(step, ["a"], 1),
])  # fmt: skip
def test_what_is_no_step_is_said_where_a_step_is_wanted(use):
    """As a model itself, what function_step gives, and what memory.predict gives."""
    for given in ("net", (1.0, EMPTY), Predicted(1, 1, 1, 1, trace=EMPTY)):
        with pytest.raises(TypeError, match="is no traced step"):
            use(given)


# Maps


def boxed(ax):
    """List the texts of a map that stand in boxes."""
    return [text for text in ax.texts if text.get_bbox_patch() and text.get_color() == "white"]


def boxes_on(ax):
    """Give the boxes of a map: colour, name, and how many operations."""
    found = []
    for text in boxed(ax):
        name, count = re.fullmatch(r"(.+?)(?: \((\d+)\))?", text.get_text()).groups()
        found.append((shade_of(text.get_bbox_patch()), name, int(count or 1)))
    return found


def ways_of(ax):
    """List the arrows of a map: the texts of the boxes at both ends, and points in pixels."""
    ax.figure.canvas.draw()
    at = {text.get_position(): text for text in boxed(ax)}
    found = []
    for note in (t for t in ax.texts if getattr(t, "arrow_patch", None)):
        arrow = note.arrow_patch
        path = arrow.get_transform().transform_path(arrow.get_path())
        found.append((at[note.xyann], at[note.xy], path.interpolated(30).vertices))
    return found


def test_a_small_map_shows_operations_and_bytes_but_no_constants():
    labels = labels_of(charts.placement_map(towers(2)))
    assert "tower_1/given" in labels and "tower_2/beside" in labels and "total" in labels
    assert labels.count("360 kB") == 2 and not any("number" in label for label in labels)
    assert not any("kB" in label for label in labels_of(charts.placement_map(placed(towers(2)))))
    twice = replace(towers(8), copies=towers(8).copies * 2)
    labels = labels_of(charts.placement_map(twice))  # by scope, and bytes added up
    assert "tower_8 (3)" in labels and labels.count("720 kB") == 8


def test_a_long_chain_and_a_loop_can_be_drawn():
    names = [f"layer/op{i}" for i in range(3000)]
    edges = [*itertools.pairwise(names), (names[-1], names[2990])]
    step = step_of(*((name, "Add", "/CPU:1", i, 1) for i, name in enumerate(names)), edges=edges)
    assert labels_of(charts.placement_map(step))[-1] == "layer (3000)"


@pytest.mark.parametrize("made, most, clear", [
    (layered(150, 4), 24, True), later(layered(40, 8, True), 24, False),
    later(layered(150, 8), 1, False), later(layered(150, 8), 90, False),
], ids=["layers", "layers in towers", "one box", "many boxes"])  # fmt: skip
def test_a_map_fits_a_page_counts_every_operation_and_keeps_arrows_clear(made, most, clear):
    ax = charts.placement_map(made, most=most)
    width, height = ax.figure.get_size_inches()
    assert width <= 12 and height <= 10
    drawn = boxes_on(ax)
    assert len(drawn) <= max(most, len(made.devices))
    counted = Counter(itertools.chain(*([shade] * count for shade, _, count in drawn)))
    assert counted == Counter(colour(op.device) for op in made.ops if op.type != "Const")
    inside_and_apart(ax)
    boxes = [(box, box.get_window_extent()) for box in boxed(ax)]
    assert ways_of(ax)
    for *ends, points in ways_of(ax) if clear else ():  # what is drawn between two boxes
        for box, extent in boxes:
            if box not in ends:
                assert not any(extent.contains(x, y) for x, y in points), box.get_text()


def test_a_large_map_keeps_the_largest_and_folds_variables_and_the_rest():
    trace = layered(150)
    names = {name: count for _, name, count in boxes_on(charts.placement_map(trace))}
    assert names["variables"] == 300 and names["optimizer"] == 150
    weight = Counter()
    for op in trace.ops:
        weight[op.name.rpartition("/")[0]] += op.length / 0.8 + op.bytes / 4e5  # about the totals
    heavy = {re.sub("net_1/(.*)_1", r"\1", name) for name, _ in weight.most_common(12)}
    assert len(heavy - {"adam"}) > 10 and heavy - {"adam"} <= names.keys()
    inside = boxes_on(charts.placement_map(layered(150, net="big_1/net_1")))
    assert sorted(n.replace("layer", "net/layer") for n in names) == sorted(n for _, n, _ in inside)
    names = Counter(name for _, name, _ in boxes_on(charts.placement_map(layered(40, 8, True))))
    assert all(names[f"tower_{i}"] for i in range(8)) and not any("layer" in n for n in names)
    kinds = ("MatMul", 1), ("Mul", 2)  # in no scope: by what they are
    lone = ((f"{k}_{i}", k, "/CPU:1", i, long) for i in range(300) for k, long in kinds)
    drawn = boxes_on(charts.placement_map(step_of(*lone)))
    assert drawn == [(colour("/CPU:1"), "MatMul", 300), (colour("/CPU:1"), "Mul", 300)]


def test_an_arrow_ends_at_the_box_that_uses_the_copy_and_feeds_the_others():
    ops = (("y", "Split", "/CPU:0", 0, 1), ("gradients/shape", "Shape", "/CPU:1", 1, 1),
           ("tower/loss", "Sub", "/CPU:1", 2, 1), ("gradients/loss", "Mul", "/CPU:1", 3, 1),
           ("alone", "Neg", "/CPU:2", 1, 1))  # fmt: skip
    shape, loss, gradient = "gradients/shape", "tower/loss", "gradients/loss"
    edges = [("y", each) for each in (shape, loss, "alone", gradient)]
    edges += [(loss, gradient), (shape, gradient)]
    copies = tuple(Copy("y:0", "/CPU:0", f"/CPU:{i}", 16 * i, 1, 1) for i in (1, 2))
    ax = charts.placement_map(step_of(*ops, edges=edges, copies=copies), most=4)
    ends = {(a.get_text(), b.get_text().removesuffix("/loss")) for a, b, _ in ways_of(ax)}
    assert {("y", "tower"), ("y", "alone")} <= ends and ("y", "gradients (2)") not in ends
    assert sorted(text for text in labels_of(ax) if text.endswith(" B")) == ["16 B", "32 B"]


# Jobs, memory, costs


def test_jobs_are_bars_in_the_row_and_colour_of_their_device():
    ax = charts.jobs(QUEUE)
    assert rows_of(ax) == ["core 4", "core 10"]
    assert ax.yaxis_inverted() and ax.get_xlim() == (0, 3.5)
    assert ax.get_title(loc="left") == "Which job ran where; 1 job not started"
    first, second = PALETTE[:2]
    drawn = {}
    for bar in ax.collections:
        box, hatched = bar.get_paths()[0].get_extents(), bool(bar.get_hatch())
        shade = (bar.get_edgecolor() if hatched else bar.get_facecolor())[0]
        shade = matplotlib.colors.to_hex(shade)
        drawn[round(box.x0, 6), round(box.x1, 6)] = [shade, hatched]
        assert box.y0 < ax.get_yticks()[0 if shade == first else 1] < box.y1
    assert drawn == {
        (0.1, 3.2): [first, False], (0.1, 0.15): [second, True], (0.16, 2.16): [second, True],
        (2.2, 2.4): [second, False], (3.4, 3.5): [first, True],
    }  # fmt: skip
    assert {"missing: failed", "train", "last: stopped"} <= {*labels_of(ax)}


def test_names_of_jobs_keep_off_each_other_and_the_edge_and_failures_come_first():
    spans = [("early", 0, 0.3), ("bad", 0.3, 2), ("after", 4, 4.1), ("near", 4.1, 5),
             ("end of the day", 9.9, 10)]  # fmt: skip
    times = [(name, "core", 0, 0, *span, "failed" if name == "bad" else "done")
             for name, *span in spans]  # fmt: skip
    ax = charts.jobs(ran([("slot", "core", 0, 1, 0, 10, "done"), *times], 10))
    ax.figure.canvas.draw()
    places = {text.get_text(): text.get_window_extent().transformed(ax.transData.inverted())
              for text in ax.texts}  # fmt: skip
    assert places.keys() == {"bad: failed", "slot", "after", "end of the day"}
    starts = {name: box.x0 for name, box in places.items() if "end" not in name}
    assert starts == pytest.approx({"bad: failed": 0.3, "slot": 0, "after": 4}, abs=0.05)
    assert places["end of the day"].x1 == pytest.approx(9.9, abs=0.1)


def test_spans_are_in_the_colour_of_the_device_of_their_model():
    ax = charts.spans({"a": [(0, 1), (2, 3)], "b": [(0.5, 1)]}, {"a": "/CPU:2", "b": "/CPU:1"})
    assert rows_of(ax) == ["a on /CPU:2", "b on /CPU:1"] and ax.get_xlim()[0] == 0
    one, two = colour("/CPU:1"), colour("/CPU:2")
    assert bars_of(ax)[0] == [(two, 0, 1), (two, 2, 3), (one, 0.5, 1)]


def test_bars_are_as_long_as_what_they_stand_for():
    ax = charts.held(HELD)
    reached = [[bar.get_x() + bar.get_width() for bar in part] for part in ax.containers]
    assert reached == [[2, 2, 2], [6, 6, 6], [8, 7, 8], [38, 38, 8], [38, 88, 8]]
    assert labels_of(ax) == ["38 MB", "88 MB", "8 MB"] and ax.yaxis_inverted()


def test_passes_are_dark_and_pale_other_work_grey_and_waits_hatched():
    """A forward operation has the model's name, a backward one "gradient", and others neither."""
    times = {"net/Conv2D": (0.0, 1.0), "gradient_tape/net/Mul": (1.0, 1.0), "adam/Sub": (3.0, 0.5)}
    ops = ((name, "Mul", "/CPU:1", *each) for name, each in times.items())
    step = step_of(*ops, ("IteratorGetNext", "IteratorGetNext", "/CPU:0", 0.0, 0.1))
    ax = drawings.both_ways(step, SimpleNamespace(name="net"))
    device = colour("/CPU:1")
    assert bars_of(ax)[0][:3] == [(device, 0, 1000), (pale(device), 1000, 2000), (HOST, 3000, 3500)]
    wait = ax.collections[3]
    assert wait.get_paths()[0].get_extents().x1 == 3000 and wait.get_hatch()
    assert {"forward", "backward"} <= {*labels_of(ax)} and "other" not in labels_of(ax)
    nets = step_of(*((name, "MatMul", "/CPU:1", start, 1.0) for start, name in enumerate(
        ("gradient_tape/made_1/MatMul", "judge_1/MatMul", "made_1/MatMul", "adam/Sub"))))
    ax = drawings.networks(nets, "made", "judge")
    assert [bar[0] for bar in bars_of(ax)[0]] == [device, pale(device), device, HOST]


def test_lines_and_dots_are_where_the_numbers_are():
    ax = charts.monitor(watched((0, 1), PHASES))
    names = [line.get_label().partition(", at most ") for line in ax.lines]
    assert {"500 MB", "901 MB", "400 MB"} < {most for *_, most in names}
    assert ax.get_ylim() == (0, pytest.approx(1.2 * 400))  # of the allocators, which lie low else
    curves = {name: np.asarray(line.get_ydata(), float)
              for (name, *_), line in zip(names, ax.lines, strict=True)}  # fmt: skip
    assert list(curves["this process"]) == [300, 350, 400, 450, 500]
    np.testing.assert_array_equal(curves["GPU 1, all processes"], [901] * 3 + [np.nan] * 2)
    assert list(curves["/GPU:1, handed out"]) == [0, 100, 200, 300, 400]
    ax = drawings.ranges({"a": (1, 2), "b": (1.5, 2)}, {"b": 1.75}, title="", across="")
    assert [(bar.get_x(), bar.get_width()) for bar in ax.patches] == [(1, 1), (1.5, 0.5)]
    assert [(*line.get_xdata(), *line.get_ydata()) for line in ax.lines] == [(1.75, 1)]
    ax = drawings.ranges({"a": (1, 2), "b": (2, 2), "c": (1, 1)}, title="", across="", limit=1.5)
    said = [text.get_text().split(": ")[1] for text in ax.texts if ": " in text.get_text()]
    assert said == ["rent", "buy", "do not buy"]
    one, two = timing.Timing((3.0, 3.5, 4.0, 4.0, 4.0)), timing.Timing((2.0,) * 5)
    pairs = {16: timing.Comparison(one, two)}
    ax = drawings.speedups({"strong": pairs, "weak": pairs}, devices=2)
    drawn = [(line.get_xdata()[0], *bars.get_segments()[0][:, 0])
             for line, _, (bars,) in ax.containers]  # fmt: skip
    assert drawn == [(2, 1.5, 2), (4, 3, 4)] and labels_of(ax)[:2] == ["2.00", "4.00"]
    assert rows_of(ax) == ["strong, batch of 32", "weak, batch of 16 \N{RIGHTWARDS ARROW} 32"]
    ax = drawings.speedups({"strong": {16: timing.Comparison(one, one)}}, devices=2)
    assert ax.texts[0].get_text() == "cannot be\ntold apart"
    held = [("model/a_1/MatMul", 8 * MB, 0, 3), ("small", 1, 0, 3),
            ("gradient_tape/a/Mul", 4 * MB, 1, 2)]  # fmt: skip
    made = tuple(Allocation(op, "/CPU:1", size, *times) for op, size, *times in held)
    ax = charts.live_bytes(step_of(allocations=made), by="tensor")
    assert list(ax.lines[0].get_ydata()) == pytest.approx([0, 8, 12, 8, 0], abs=1e-5)
    assert [*ax.lines[1].get_xdata(), ax.lines[2].get_xdata()[0]] == [2, 1.5]
    assert labels_of(ax) == ["a", "the peak", "backward pass"]


def test_weights_along_a_step_are_those_owned_and_copies_until_their_last_use():
    def weight(device, bytes):
        shape, dtype = SimpleNamespace(num_elements=lambda: bytes // 4), SimpleNamespace(size=4)
        return SimpleNamespace(value=SimpleNamespace(device=device, shape=shape, dtype=dtype))

    one = "/CPU:1"
    state = [(weight(device, bytes), SimpleNamespace(variables=[]), device)
             for device, bytes in [(one, 240), ("/CPU:0", 80), ("/CPU:0", 80)]]  # fmt: skip
    ran = [("copy", "Snapshot", 80), ("use", "MatMul", 8), ("copy_1", "Snapshot", 80),
           ("loss", "SoftmaxCrossEntropy", 4), ("last", "MatMul", 8)]  # fmt: skip
    ops = ((name, kind, one, float(i), 0.5, size) for i, (name, kind, size) in enumerate(ran))
    edges = ("copy", "use"), ("copy", "last"), ("copy_1", "loss")
    step = step_of(*ops, edges=edges, allocations=(Allocation("use", one, 800, 1.0, 1.5),))
    held = [size for _, size in weights_held(state, step, one)]
    assert held == [240, 320, 400, 320, 240]
    assert share_of_weights(state, step) == 1


def test_what_runs_forward_is_shaded_and_numbered_at_the_top_after_it():
    curves = [4, 8, 8, 4, 0], [0, 2, 1, 2, 0], [1, 3, 1, 4, 3, 1, 2, 0], [1, 4, 3, 4, 0]
    ran = ("a/MatMul", 0.5), ("gradient_tape/a/MatMul", 2), ("a/MatMul", 3.5)
    ops = [(name, "MatMul", "/CPU:1", start, 0.1) for name, start in ran]
    memory = [{"/CPU:1": tuple((t, b * MB) for t, b in enumerate(curve))} for curve in curves]
    made = [step_of(*(ops if i else ()), memory=each) for i, each in enumerate(memory)]
    drawings.hills({f"step {i}": step for i, step in enumerate(made)}, "/CPU:1")
    panels = plt.gcf().axes
    assert [labels_of(ax) for ax in panels] == [[], *[["1", "2"]] * 3]
    shaded = [[(patch.get_x(), patch.get_width()) for patch in ax.patches] for ax in panels]
    assert shaded == [[], [(0, 2), (4, 1)], [(0, 2), (4, 4)], [(0, 2), (4, 1)]]
    assert panels[-1].get_title("left") == "step 3: 4.0 MB, 50%"


def test_steps_show_how_long_each_took_and_where_gradients_were_added():
    one, two = "/CPU:1", "/CPU:2"
    alone = step_of(("Conv2D", one, 0.0, 4.0), ("Conv2DBackpropInput", one, 4.0, 4.0),
                    ("Conv2DBackpropFilter", one, 5.0, 2.0))  # fmt: skip
    shared = step_of(("Conv2D", one, 0.0, 2.0), ("Relu", two, 1.0, 1.0),
                     ("Conv2D", two, 0.0, 1.0), ("AddN", one, 2.0, 1.0))  # fmt: skip
    ax = drawings.steps({"one": alone, "all": shared}, line="averaged")
    assert {"one: 8000 ms", "all: 3000 ms", "forward", "backward", "ReLU"} <= {*labels_of(ax)}
    assert ax.collections[-1].get_segments()[0][:, 0] == pytest.approx([3000, 3000])
    more = replace(shared, ops=(*shared.ops, Op("late", "AddN", "/CPU:1", 3.0, 1.0)))
    ax = drawings.steps({"all": more}, last=True)
    assert [line[0, 0] for line in ax.collections[-1].get_segments()] == pytest.approx([4000])


def test_what_misses_its_target_is_crossed_out():
    found = Ratio("met", 1.9, None, True, 1.4, 2.1), Ratio("missed", 0.84, 0.9)
    made = Card(name="a", date="", machine="m", mode="cores", devices=2, versions={}, ratios=found)
    single = [line for line in cards([made]).lines if len(line.get_xdata()) == 1]
    drawn = [(line.get_marker(), line.get_xdata()[0]) for line in single]
    assert drawn[:3] == [("o", 1.9), ("o", 0.84), ("x", 0.84)]


# Of lessons


@pytest.mark.parametrize("kernel", [True, False])
def test_a_panel_draws_once_and_offers_choices_only_where_a_kernel_runs(monkeypatch, kernel):
    import ipywidgets

    drawn, offered = [], {}
    monkeypatch.setattr(drawings, "_has_kernel", lambda: kernel)
    monkeypatch.setattr(ipywidgets, "interact", lambda draw, **choices: offered.update(choices))
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    drawings.panel(lambda **chosen: drawn.append(chosen), batch=[128, 32], width=[1])
    assert drawn == [{"batch": 128, "width": 1}]
    found = {name: (each.options, each.value) for name, each in offered.items()}
    wanted = {"batch": ((32, 128), 128), "width": ((1,), 1)}
    assert found == (wanted if kernel else {})
