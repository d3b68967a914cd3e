"""One call of a model on rows of devices: its batch is cut, rows run, and all meet again.

`composed` can be read from top to bottom. A batch is cut into a part for each row and piece. Each
row reads the variables that its devices use, and runs the segments of the model one after the
other: in a stage, in parts of layers, or twice. What all rows have made is joined on the device
where the first row has it, and gradients go back the same way and meet where the weights lie.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mgpu_helpers import _private
from mgpu_helpers._later import keras, tf
from mgpu_helpers._layers import arguments
from mgpu_helpers._train import HOST, home_of
from mgpu_helpers.fit._asking import EACH, GIVES, LAST, Ways, ask_parts
from mgpu_helpers.fit._kinds import MEAN, SUM, asking, common, exchanged
from mgpu_helpers.fit._order import STEP, Order, added_now
from mgpu_helpers.fit._rows import Row, on
from mgpu_helpers.fit._segments import Segment, columns, kept_as_known
from mgpu_helpers.fit.shares import as_part, of_workers, part_of, scaled, size_of, workers_here
from mgpu_helpers.fit.trainer import FEW, by_few
from mgpu_helpers.towers.averages import average, total
from mgpu_helpers.towers.shards import check_rows, like, rows


def composed(laid: Any, args: Any, named: dict[str, Any]) -> Any:
    """Call a model as its layout says."""
    model, training = laid.model, named.get("training")
    trained, kept = model.trainable_variables, model.non_trainable_variables
    segments = laid.segments(training)
    xs, sizes, given = cut(model, args, named, lambda size: laid.sizes(size, training))
    row_count = len(laid.layout.rows)
    used = columns(segments, laid.layout.length)
    step = STEP.get()
    order, first = step or (Order(), 0)
    names = [f"tower_{r}" if laid.layout.length == 1 or r else "" for r in range(row_count)]
    each_row = [Row(r, devices, used, laid.cut, names[r], order.reads)
                for r, devices in enumerate(laid.layout.rows)]  # fmt: skip
    pieces = len(given) // row_count
    made: list[Made] = []  # by part of the batch
    for k in range(0, len(given), row_count):
        piece = first + k // row_count
        with order.task(f"F{piece}"):
            made += forward(laid, segments, each_row, given[k : k + row_count],
                            sizes[k : k + row_count], training, piece)  # fmt: skip
    if len(model.weights) > len(trained) + len(kept):
        raise ValueError(
            f"{model.name} has made weights in this call, which belong to one device: call it once "
            "on a batch before fit.use."
        )
    held = [sum(sizes[r::row_count]) for r in range(row_count)]
    if step is None:
        order.keep(laid.schedule(pieces, False), "F")
    ways = [MEAN] * len(made[0].losses)
    if len(made) > 1 and laid.has_own:
        ways = ways_of(laid, args, named)
    keep(each_row, held)
    outputs = [each.outputs for each in made]
    with tf.device(HOST), _private.without_autocast():
        for own, each in zip(given, outputs, strict=True):
            batch = [x for x in keras.tree.flatten(own) if tf.is_tensor(x) and x.shape.rank != 0]
            check_rows(batch[0], keras.tree.flatten(each))

    def tie(ends: list[Any]) -> list[Any]:
        def back(chosen: Sequence[Any], by: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            found = backward(chosen, by, made, each_row, trained, xs, order, first)
            if step is None:
                order.keep(laid.schedule(pieces, False), "B")
            return found

        return tied(ends, xs, trained, back)

    losses = [each.losses for each in made]
    return together(model, outputs, losses, ways, sizes, tie, made[0].places)


def ways_of(laid: Any, args: Any, named: dict[str, Any]) -> list[str]:
    """Find out, once, how what layers add to the loss for parts of a batch is put together."""
    training = named.get("training")
    segments, devices = laid.segments(training), laid.layout.rows[0]
    used, known = columns(segments, len(devices)), kept_as_known(laid.model)

    def call(given: Any) -> list[tuple[Any, str, Ways]]:
        row, size = Row(0, devices, used, laid.cut), size_of(given)
        with as_part(size / FEW), _private.call_of(laid.model, training):
            (made,) = forward(laid, segments, [row], [given], [size], training, 0)
        for x in keras.tree.flatten(made.outputs):
            exchanged(x, GIVES)
        kept = [(x, f"what a layer gives {v.path}", Ways({MEAN: LAST}))
                for v, x in row.state.values() if id(v) not in known]  # fmt: skip
        return [*((x, "a loss that a layer adds", _of_loss(x)) for x in made.losses), *kept]

    if (key := str(training)) not in laid.ways:
        laid.ways[key] = by_few(lambda few: ask_parts(call, few), (args, named))
    return laid.ways[key]


def _of_loss(x: Any) -> Ways:
    """Say what parts of a batch may make a loss of a layer; `add_loss` also takes one for each."""
    by_example = x.shape.rank and x.shape[0] is None
    return {SUM: EACH} if by_example else {MEAN: MEAN, SUM: SUM}


def where_it_is(laid: Any, args: Any, named: dict[str, Any]) -> Any:
    """Train a model where it is, also in a replica of a strategy, with its segments run twice."""
    segments = laid.segments(True)
    row = Row(0, (None,), columns(segments, 1))
    row.begin(laid.graph.flat(masked(args, named)))
    for segment in segments:
        row.run(segment, True, None, "")
    keep([row], [1])
    for loss in row.losses:
        keras.layers.Layer.add_loss(laid.model, loss)  # a functional model has none of its own yet
    return laid.graph.packed([row.at(0, value) for value in laid.graph.outputs])


class Made(NamedTuple):
    """What a row has made of a part of the batch."""

    inputs: list[Any]
    outputs: Any
    losses: list[Any]
    places: list[str | None]  # of the outputs


def forward(
    laid: Any, segments: Sequence[Segment], each_row: Sequence[Row], given: Sequence[Any],
    sizes: Sequence[Any], training: Any, piece: int,
) -> list[Made]:  # fmt: skip
    """Run all rows, segment by segment, so that they can meet at a BatchNormalization."""
    if not segments[0].calls:
        whole: list[Made] = []
        for row, (args, named), size in zip(each_row, given, sizes, strict=True):
            with as_part(_most(size, 1) / _most(sum(sizes), 1)):
                whole.append(_whole(laid, row, segments[0], args, named, size))
        return whole
    graph, made, meeting = laid.graph, [], laid.meeting()
    for row, own in zip(each_row, given, strict=True):
        with on(row.devices[0]), tf.name_scope(f"{row.names}entry"):
            row.begin(graph.flat(masked(*own)))
    for segment in segments:
        name = f"stage_{segment.device}/F{piece}" if laid.layout.staged else ""
        meets = training and segment.calls[0] in meeting
        moments = met(segment, each_row, sizes) if meets else ()
        for row, size in zip(each_row, sizes, strict=True):
            with as_part(_most(size, 1) / _most(sum(sizes), 1)):
                row.run(segment, training, _some(size), f"{row.names}{name}", moments)
    for row in each_row:
        inputs = tf.nest.flatten([row.made[0][value] for value in graph.inputs], True)
        homes = [row.maker[value] for value in graph.outputs]
        outputs = [row.made[d][value] for d, value in zip(homes, graph.outputs, strict=True)]
        places = [row.devices[d] for d in homes]
        made.append(Made(inputs, graph.packed(outputs), row.losses, places))
    return made


def _some(size: Any) -> Any:
    """Give a size that may be 0, None for one that is not."""
    return None if not tf.is_tensor(size) and size else size


def _whole(laid: Any, row: Row, segment: Segment, args: Any, named: Any, size: Any) -> Made:
    """Run a model by its own call."""
    row.losses = []
    with row.reading(0, segment.variables, _some(size), row.names) as scope, scope:
        outputs = laid.original(*args, **named)
    flat = keras.tree.flatten(outputs)
    inputs = [x for x in keras.tree.flatten((args, named)) if tf.is_tensor(x) and x.shape.rank != 0]
    inputs = tf.nest.flatten(inputs, expand_composites=True)
    return Made(inputs, outputs, row.losses, [row.devices[0]] * len(flat))


def met(segment: Segment, each_row: Sequence[Row], sizes: Sequence[Any]) -> tuple[Any, Any]:
    """Compute mean and variance of what all rows give a BatchNormalization, on the first one."""
    call = segment.calls[0]
    layer, means, variances, counts = call.operation, [], [], []
    for row, size in zip(each_row, sizes, strict=True):
        with tf.device(row.devices[segment.device]), tf.name_scope(f"{row.names}{layer.name}"):
            (x, *_), named = arguments(call, {v: row.at(segment.device, v) for v in call.takes})
            mask = named.get("mask", _private.mask_of(x))
            x = tf.cast(x, keras.backend.result_type(x.dtype, "float32"))
            mean, variance = _private.moments(layer, x, mask)
            count = size
            if mask is not None:  # of a share of 0, what stands in its place does not count
                count = tf.math.count_nonzero(mask) * tf.cast(size > 0, tf.int64)
            means.append(mean)
            variances.append(variance)
            counts.append(tf.cast(count, x.dtype))
    with tf.device(each_row[0].devices[segment.device]), tf.name_scope(layer.name):
        all_of_them = of_workers(tf.add_n(counts))
        weights = [count / all_of_them for count in counts]
        mean = of_workers(tf.add_n([w * m for w, m in zip(weights, means, strict=True)]))
        apart = [v + tf.square(m - mean) for v, m in zip(variances, means, strict=True)]
        variance = of_workers(tf.add_n([w * a for w, a in zip(weights, apart, strict=True)]))
        return tuple(common([mean, variance])) if asking() else (mean, variance)


def keep(each_row: Sequence[Row], held: Sequence[Any]) -> None:
    """Write what layers have changed beside the weights, once: the average over all rows.

    held: the examples of each row.

    What cannot be averaged, such as how often a seed was used, is the first row's.
    """
    with _private.without_autocast():
        for key, (variable, value) in each_row[0].state.items():
            every = [row.state[key][1] for row in each_row]
            floating = variable.dtype.startswith(("float", "bfloat"))
            if floating and len(every) > 1:
                ((value,)) = average([[each] for each in every], weights=held)
            if floating and workers_here() > 1:  # of which one may have no examples
                share = scaled(tf.ones([], variable.dtype))
                value = of_workers(tf.math.multiply_no_nan(tf.cast(value, share.dtype), share))
            variable.assign(value)


def backward(
    ends: Sequence[Any], by: Sequence[Any], made: Sequence[Made], each_row: Sequence[Row],
    trained: Sequence[Any], xs: Sequence[Any], order: Order, first: int,
) -> tuple[list[Any], list[Any]]:  # fmt: skip
    """Give the gradients of the weights, each added up where its weight is, and those of xs.

    They are computed where the forward pass was: first for what each part has given, then back
    through the rows, piece by piece.
    """
    given = [[x for x in _with_logits(each) if x.dtype.is_floating] for each in made]
    starts = [x for each in given for x in each]
    of_starts = _gradients(ends, starts, by, starts)
    slopes = {x.ref(): slope for x, slope in zip(starts, of_starts, strict=True)}
    reads = [(v, row.read[d][id(v)], device) for v in trained for row in each_row
             for d, device in enumerate(row.devices) if id(v) in row.read[d]]  # fmt: skip
    found: dict[int, Any] = {}  # by the number of what was read
    of_inputs: dict[Any, Any] = {}
    n = len(each_row)
    for k in range(0, len(made), n):
        ys = list({x.ref(): x for each in given[k : k + n] for x in each
                   if slopes[x.ref()] is not None}.values())  # fmt: skip
        inputs = [x for each in made[k : k + n] for x in each.inputs if x.dtype.is_floating]
        if not ys:
            continue
        name = f"B{first + k // n}"
        with order.task(name) as results, tf.name_scope(name):
            wanted = [*(x for _, x, _ in reads), *inputs]
            own = _gradients(ys, wanted, [slopes[y.ref()] for y in ys])
            for i, ((_, _, device), slope) in enumerate(zip(reads, own, strict=False)):
                if slope is not None:
                    with tf.device(device):  # a read has none in a graph
                        found[i] = added_now(found.get(i), slope)
                    results.append(found[i])
            of_inputs |= {x.ref(): s for x, s in zip(inputs, own[len(reads) :], strict=True)
                          if s is not None}  # fmt: skip
    by_weight: dict[int, list[Any]] = defaultdict(list)
    for i, slope in found.items():
        by_weight[id(reads[i][0])].append(slope)
    sums = []
    with tf.name_scope("average"):
        for v in trained:
            own = by_weight[id(v)]
            with tf.device(home_of([v])):
                slope = as_alone(total([[each] for each in own])[0], *own) if own else None
                # A sum of one is no operation, and so would not say that it is here.
                sums.append(slope if slope is None else tf.identity(slope))
    reached = [x for each in made for x in each.inputs if x.ref() in of_inputs]
    found_by = [of_inputs[x.ref()] for x in reached]
    return sums, _gradients(reached, xs, found_by) if reached else [None] * len(xs)


def as_alone(total: Any, *gradients: Any) -> Any:
    """Let a sum overflow where one device has it in float16, which rows have in float32.

    So a step is skipped, and the loss scaled less, when one device would do so.
    """
    if not any(isinstance(g, tf.Tensor) and _of_halves(g) for g in gradients):  # or sparse, or None
        return total
    half = tf.cast(total, tf.float16)
    return tf.where(tf.math.is_finite(half), total, tf.cast(half, total.dtype))


def _of_halves(gradient: Any) -> bool:
    """Say whether a gradient was made in float16, or added up from some that were."""
    op = gradient.op
    if op.type == "Cast":
        return op.inputs[0].dtype == tf.float16
    return op.type == "AddN" and any(_of_halves(each) for each in op.inputs)


def _with_logits(made: Made) -> list[Any]:
    """List what a row has given, with what a softmax or sigmoid has made it of."""
    flat = keras.tree.flatten(made.outputs)
    logits = [x for y in flat if (x := _private.logits_of(y)) is not None]
    return [*flat, *logits, *made.losses]


def _gradients(
    ys: Sequence[Any], xs: Sequence[Any], by: Sequence[Any], stop: Sequence[Any] | None = None
) -> list[Any]:
    """Give the gradients of ys for each of xs, where ys were made, and not through those of stop.

    So what a gradient for logits is goes there once, also where their softmax is used as well.
    """
    return list(tf.compat.v1.gradients(
        ys, xs, by, colocate_gradients_with_ops=True, stop_gradients=stop
    ))  # fmt: skip


def masked(args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Give the inputs of a call, and put on them the masks that Keras gives beside them."""
    inputs = args[0] if args else named["inputs"]
    if (masks := named.get("mask")) is not None:
        for x, mask in zip(*map(keras.tree.flatten, (inputs, masks)), strict=True):
            if mask is not None:
                _private.set_mask(x, mask)
    return inputs


def cut(
    model: Any, args: Any, named: Any, sizes_of: Callable[[Any], list[Any]]
) -> tuple[list[Any], list[Any], list[tuple[Any, Any]]]:
    """Cut what a model is called with into parts: the batches, sizes of parts, their arguments.

    One of the batches twice would count its slope twice: each is a tensor of its own.
    """
    leaves = [tf.convert_to_tensor(x) if isinstance(x, np.ndarray) else x
              for x in keras.tree.flatten((args, named))]  # fmt: skip
    batches = [k for k, x in enumerate(leaves) if tf.is_tensor(x) and x.shape.rank != 0]
    with tf.device(HOST), _private.without_autocast():
        whole = [tf.identity(leaves[k]) for k in batches]
        xs = tf.nest.flatten(whole, expand_composites=True)
        sizes = sizes_of(_size(model, whole))
        shards = list(zip(*(_cut(x, sizes) for x in whole), strict=True))
    given = []
    for shard in shards:
        own = [*leaves]
        for k, x in zip(batches, shard, strict=True):
            own[k] = x
        given.append(keras.tree.pack_sequence_as((args, named), own))
    return xs, sizes, given


def _size(model: Any, xs: Sequence[Any]) -> Any:
    """Give the number of examples of what a model is called with."""
    sizes = sorted(map(rows, xs), key=tf.is_tensor)  # what is known first
    known = [size for size in sizes if not tf.is_tensor(size)]
    if not known and not sizes or len({*known}) > 1 or 0 in known:
        raise ValueError(
            f"{model.name} is called with parts of {', '.join(map(str, known)) or 'no'} examples, "
            "which cannot be shared out: give batches of one size."
        )
    return sizes[0]


def _cut(x: Any, sizes: Sequence[Any]) -> list[Any]:
    """Cut a batch into shards; in place of one without examples stands an example of another."""

    ends = [_most(sum(sizes[: i + 1]), 1) for i in range(len(sizes))]
    return [part_of(x, end - _most(size, 1), end) for size, end in zip(sizes, ends, strict=True)]


def _most(size: Any, least: int) -> Any:
    return tf.maximum(size, least) if tf.is_tensor(size) else max(size, least)


def _joined(column: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """Join what the towers made, without what stands in place of a shard."""
    some = tf.minimum if tf.is_tensor(sizes[0]) else min
    return tf.concat([x[: rows(x) * some(n, 1)] for x, n in zip(column, sizes, strict=True)], 0)


def together(
    model: Any,
    outputs: Sequence[Any],
    losses: Sequence[Sequence[Any]],
    ways: Sequence[str],
    sizes: Sequence[Any],
    tie: Callable[[list[Any]], list[Any]],
    places: Sequence[str | None],
) -> Any:
    """Join what a model made of the parts of a batch, where `places` say, or on the host.

    What layers add to the loss is put together as its `ways` say.
    """
    columns = list(zip(*map(keras.tree.flatten, outputs), strict=True))
    joined = []
    for column, place in zip(columns, places, strict=True):
        with tf.device(place), _private.without_autocast():
            joined.append(_joined(column, sizes))
    every = {k: [_private.logits_of(x) for x in column] for k, column in enumerate(columns)}
    logits = {k: column for k, column in every.items() if all(x is not None for x in column)}
    for k, made_of in logits.items():
        with tf.device(places[k]), _private.without_autocast():
            joined.append(_joined(made_of, sizes))
    with tf.device(places[-1]), _private.without_autocast():
        added = [_put_together(way, column, sizes)
                 for way, *column in zip(ways, *losses, strict=False)]  # fmt: skip
        ends = [*joined, *added]
        if not tf.executing_eagerly():
            ends = tie(ends)
    for end, column, place in zip(ends, columns, places, strict=False):
        if (masks := [_private.mask_of(x) for x in column])[0] is not None:
            with tf.device(place):
                _private.set_mask(end, _joined(masks, sizes))
    for k, x in zip(logits, ends[len(columns) :], strict=False):
        _private.set_logits(ends[k], x)
    for loss in ends[len(joined) :]:
        keras.Layer.add_loss(model, loss)  # that of a functional model is not written yet
    return keras.tree.pack_sequence_as(outputs[0], ends[: len(columns)])


def _put_together(way: str, parts: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """Make of what a layer adds to the loss for parts of a batch what it adds for the batch."""
    if way == EACH:
        return _joined(parts, sizes)
    most = 1 if way == SUM else sum(sizes)
    some = tf.minimum if tf.is_tensor(sizes[0]) else min
    parts = [x if x.dtype.is_floating else tf.cast(x, keras.config.floatx()) for x in parts]
    return tf.add_n([like(some(size, most) / most, x) * x
                     for size, x in zip(sizes, parts, strict=True)])  # fmt: skip


def tied(
    values: Sequence[Any],
    xs: Sequence[Any],
    trained: Sequence[Any],
    back: Callable[[Sequence[Any], Sequence[Any]], tuple[list[Any], list[Any]]],
) -> list[Any]:
    """Let gradients go back where the forward pass ran, and meet there: a tape places none.

    TensorFlow sends all arguments of a function with a gradient of its own through one operation.
    So there is one for each value, one in the middle, and one for each device that owns variables,
    tied by tokens. Going back, the values come first and leave their gradients for the middle,
    which knows then what a loss used, and leaves those of the weights for the last. They are what
    back(values, gradients of these) gives: gradients of `trained`, and of xs.
    """
    by: dict[int, Any] = {}
    slopes: dict[int, Any] = {}
    owned: dict[str, list[int]] = defaultdict(list)
    for k, variable in enumerate(trained):
        owned[home_of([variable])].append(k)
    graph = tf.compat.v1.get_default_graph()

    def owner(owns: Sequence[int]) -> Any:
        weights = [tf.convert_to_tensor(trained[k]) for k in owns]
        given_back = tf.custom_gradient(
            lambda *_: (tf.zeros([]), lambda _: [slopes[k] for k in owns])
        )
        return given_back(*weights)

    @tf.custom_gradient
    def middle(*given: Any) -> Any:
        def meet(_: Any) -> Any:
            if tf.compat.v1.get_default_graph() is not graph:
                raise RuntimeError(
                    "the gradient of a model in a layout is taken outside of the tf.function that "
                    "called it: put the GradientTape into the function."
                )
            with tf.device(HOST):
                found, own = back([values[k] for k in by], [*by.values()])
                by.clear()
                slopes.update(enumerate(found))
                return [*own, *[tf.zeros([])] * len(owned)]

        return tf.zeros([]), meet

    def end(k: int, value: Any) -> Any:
        def leave(slope: Any) -> Any:
            by[k] = slope
            return tf.zeros([])

        with tf.device(value.device):
            return tf.custom_gradient(lambda _: (value, leave))(token)

    tokens = []
    for device, owns in owned.items():
        with tf.device(device):
            tokens.append(owner(owns))
    with tf.device(HOST):
        token = middle(*xs, *tokens)
    return [end(k, x) if x.dtype.is_floating else x for k, x in enumerate(values)]
