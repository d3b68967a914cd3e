"""The networks of the lessons' sources as plain data: one forward function, weights of three kinds.

`jang` is from the article "Multi-GPUs" by Wonik Jang, 2017; `tensorlight` from the tensorlight
notebook "MNIST CNN Multi GPU Example", 2016; `p40` from the P40 note "How to make TensorFlow employ
multiple GPUs", 2017.
"""

from __future__ import annotations

import functools
import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mgpu_helpers._train import read
from mgpu_helpers.devices.plan import checked, placed
from mgpu_helpers.lessons import digits
from mgpu_helpers.scaling.model import Workload

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Conv:
    """A convolution with a square kernel of size x size and stride 1."""

    name: str
    filters: int
    size: int
    padding: str = "SAME"
    activation: str | None = None  # relu, leaky_relu (slope 0.2) or None
    bias: bool = True


@dataclass(frozen=True)
class Pool:
    """The largest of each 2 x 2; SAME keeps the half-full ones at the edge, VALID drops them."""

    padding: str = "SAME"


@dataclass(frozen=True)
class Dropout:
    """Drop all but a share of the entries while training."""

    name: str
    keep: float  # the share, as the source has it


@dataclass(frozen=True)
class Dense:
    """A fully connected layer; images are flattened first."""

    name: str
    units: int
    activation: str | None = None
    bias: bool = True


@dataclass(frozen=True, repr=False)
class Network:
    """Layers in order, and the shape of one example; a part of the layers is a network too."""

    name: str
    layers: tuple[Conv | Pool | Dropout | Dense, ...]
    input: Shape = (28, 28, 1)

    def __repr__(self) -> str:
        count = parameters(self)
        head = (f"{self.name}: {count:,} parameters ({4 * count / 1e6:.2f} MB), "
                f"{flops(self) / 1e6:.1f} MFLOP an example to train")  # fmt: skip
        rows = [("layer", "output", "parameters")]
        for layer, before, after in walk(self):
            own = sum(map(math.prod, _weights(layer, before).values()))
            name = getattr(layer, "name", "pool")
            rows.append((name, "x".join(map(str, after)), f"{own:,}" if own else "-"))
        return "\n".join([head] + [f"{a:8}{b:10}{c:>12}" for a, b, c in rows])


def tensorlight(width: float = 1.0) -> Network:
    """Give the network of the tensorlight notebook "MNIST CNN Multi GPU Example", 2016.

    width scales the filters and units, not the 10 outputs: 0.25 gives a quarter of them.

    >>> parameters(tensorlight())
    6640394
    """
    return Network("tensorlight", (
        Conv("conv1", _scaled(64, width), 5, activation="relu"), Pool(),
        Conv("conv2", _scaled(128, width), 5, activation="leaky_relu"), Pool(),
        Dense("fc1", _scaled(1024, width), activation="relu"), Dropout("drop1", 0.5),
        Dense("output", 10),
    ))  # fmt: skip


def p40(width: float = 1.0) -> Network:
    """Give the network of the P40 note "How to make TensorFlow employ multiple GPUs", 2017.

    Its convolutions have no activation. width scales the filters and units, not the 10 outputs.

    >>> parameters(p40())
    619146
    """
    layers: list[Conv | Pool | Dropout | Dense] = []
    for i, filters in enumerate((64, 128, 128), 1):
        conv = Conv(f"conv{i}", _scaled(filters, width), 3, padding="VALID")
        layers += [conv, Pool("VALID"), Dropout(f"drop{i}", 0.3)]
    layers += [Dense("fc1", _scaled(1024, width), activation="relu"), Dropout("drop4", 0.5),
               Dense("fc2", _scaled(256, width), activation="relu"),
               Dense("output", 10)]  # fmt: skip
    return Network("p40", tuple(layers))


def jang(hidden: int = 2400, width: float = 1.0) -> Network:
    """Give the network of the article "Multi-GPUs" by Wonik Jang, 2017, with `hidden` units.

    It has no biases; the two graphs of the article have 2400 and 4800 hidden units. width scales
    the filters and units, not the 10 outputs. The article shows its weights and not its layers.
    These layers are those of the tutorial that its weights come from: convolution, ReLU, pool and
    dropout, three times.

    >>> parameters(jang(hidden=2400))
    5050368
    """
    layers: list[Conv | Pool | Dropout | Dense] = []
    for i, filters in enumerate((64, 64, 128), 1):
        conv = Conv(f"conv{i}", _scaled(filters, width), 3, activation="relu", bias=False)
        layers += [conv, Pool(), Dropout(f"drop{i}", 0.8)]
    layers += [Dense("fc1", _scaled(hidden, width), activation="relu", bias=False),
               Dropout("drop4", 0.75), Dense("output", 10, bias=False)]  # fmt: skip
    return Network("jang", tuple(layers))


def shapes(network: Network) -> dict[str, Shape]:
    """Give the shape of each weight by name: "conv1/kernel", "conv1/bias", and so on."""
    own = (_weights(layer, before) for layer, before, _ in walk(network))
    return {name: shape for each in own for name, shape in each.items()}


def parameters(network: Network) -> int:
    """Count the parameters; each takes 4 bytes."""
    return sum(map(math.prod, shapes(network).values()))


def flops(network: Network) -> int:
    """Count the FLOP that one example takes in a training step: 2 for each multiply-add.

    The multiply-adds of a layer are done three times: forward, for the gradient of its kernel, and
    for that of its input, which the first layer is spared. Biases, activations, pools, dropout
    and the update of the weights are not counted.
    """
    work = [
        math.prod(_weights(layer, before)[f"{layer.name}/kernel"]) * math.prod(after[:-1])
        for layer, before, after in walk(network)
        if isinstance(layer, Conv | Dense)
    ]
    return 2 * (3 * sum(work) - work[0]) if work else 0


def initial(network: Network, seed: int = 0) -> dict[str, np.ndarray]:
    """Draw the weights a training starts from, float32: the same bits on every machine.

    Uniform, after He where a ReLU follows and after Glorot elsewhere; biases are zero.
    """
    bits = digits.stream(seed)
    drawn = {}
    for layer, before, _ in walk(network):
        for name, shape in _weights(layer, before).items():
            if len(shape) == 1:
                drawn[name] = np.zeros(shape, np.float32)
                continue
            fan_in, fan_out = math.prod(shape[:-1]), math.prod(shape[:-2]) * shape[-1]
            limit = math.sqrt(6 / (fan_in if layer.activation else fan_in + fan_out))
            # 24 bits: exact in float32, the middle of each of 2**24 equal steps of -1 to 1.
            steps = (bits.random_raw(math.prod(shape)) >> 40).astype(np.float64)
            unit = (2 * steps + 1) / 2**24 - 1
            drawn[name] = (unit * limit).astype(np.float32).reshape(shape)
    return drawn


def classic(network: Network, *, device: str | None = None, seed: int = 0) -> dict[str, Any]:
    """Make or reuse the weights by `get_variable` in the current variable scope of a graph.

    They live on `device`; None leaves it to the surrounding `tf.device`. The initial values become
    constants of the graph, so it grows by 4 bytes a parameter, once.
    """
    import tensorflow as tf

    make = tf.compat.v1.get_variable
    with placed(device):
        if tf.compat.v1.get_variable_scope().reuse is True:
            return {name: make(name, shape) for name, shape in shapes(network).items()}
        return {n: make(n, initializer=value) for n, value in initial(network, seed).items()}


def variables(network: Network, *, device: str | None = None, seed: int = 0) -> dict[str, Any]:
    """Make the weights as `tf.Variable` on `device`; None leaves it to the surrounding one."""
    import tensorflow as tf

    with placed(device):
        return {n: tf.Variable(value, name=n) for n, value in initial(network, seed).items()}


def logits(
    network: Network, weights: Mapping[str, Any], images: Any, *, keep: Any = 1.0, seed: Any = None
) -> Any:
    """Compute the scores [n, 10] of images [n, 28, 28, 1], in a graph or in today's code.

    `keep` is the share that each dropout layer keeps. 1.0 drops nothing; None takes the share of
    each layer, which is its source's. The mask follows from the random `seed`, two whole numbers
    such as (step, tower), and from nothing else: the same seed gives the same mask. Both may be
    tensors.
    """
    import tensorflow as tf

    x = tf.convert_to_tensor(images)
    x.shape.assert_is_compatible_with((None, *network.input))  # a Dense reshapes whatever it gets
    weights = read(weights)
    activations = {"relu": tf.nn.relu, "leaky_relu": lambda x: tf.nn.leaky_relu(x, 0.2)}
    for layer, before, _ in walk(network):
        with tf.name_scope(getattr(layer, "name", "pool")):
            if isinstance(layer, Pool):
                x = tf.nn.max_pool2d(x, 2, 2, layer.padding)
                continue
            if isinstance(layer, Dropout):
                x = _drop(x, layer, keep, seed)
                continue
            kernel = weights[f"{layer.name}/kernel"]
            if isinstance(layer, Conv):
                x = tf.nn.conv2d(x, kernel, 1, layer.padding)
            else:
                x = tf.matmul(tf.reshape(x, [-1, math.prod(before)]), kernel)
            if layer.bias:
                x = tf.nn.bias_add(x, weights[f"{layer.name}/bias"])
            if layer.activation:
                x = activations[layer.activation](x)
    return x


def loss(labels: Any, logits: Any) -> Any:
    """Average the cross entropy over the batch; labels are whole numbers, [n]."""
    import tensorflow as tf

    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def _scaled(count: int, width: float) -> int:
    return max(1, round(count * width))


def walk(network: Network) -> Iterator[tuple[Any, Shape, Shape]]:
    """Go through the layers, each with the shape of one example before and after it."""
    after = network.input
    for layer in network.layers:
        before = after
        if isinstance(layer, Dense):
            after = (layer.units,)
        elif isinstance(layer, Conv):
            lost = layer.size - 1 if layer.padding == "VALID" else 0
            after = (before[0] - lost, before[1] - lost, layer.filters)
        elif isinstance(layer, Pool):
            more = 1 if layer.padding == "SAME" else 0
            after = ((before[0] + more) // 2, (before[1] + more) // 2, before[2])
        yield layer, before, after


def _weights(layer: Any, before: Shape) -> dict[str, Shape]:
    if isinstance(layer, Conv):
        kernel: Shape = (layer.size, layer.size, before[-1], layer.filters)
    elif isinstance(layer, Dense):
        kernel = (math.prod(before), layer.units)
    else:
        return {}
    bias = {f"{layer.name}/bias": kernel[-1:]} if layer.bias else {}
    return {f"{layer.name}/kernel": kernel} | bias


def _drop(x: Any, layer: Dropout, keep: Any, seed: Any) -> Any:
    import tensorflow as tf

    keep = layer.keep if keep is None else keep
    if not tf.is_tensor(keep) and keep == 1:
        return x
    if seed is None:
        raise ValueError(f"dropout that keeps {keep} needs a seed: pass seed=(step, tower).")
    # Each layer its own. A sum stays in the host's memory on a GPU, where tf.random.fold_in waits.
    seed = tf.add(seed, [zlib.crc32(layer.name.encode()) >> 1, 0])
    return tf.nn.experimental.stateless_dropout(x, 1 - keep, seed)


@dataclass(frozen=True)
class Stage:
    """A part of a network: its device, what it makes of (weights, x), and its weights by name."""

    device: str
    function: Callable[[Mapping[str, Any], Any], Any]
    weights: Mapping[str, Any]


def cut(network: Network, starts: Sequence[str]) -> list[Network]:
    """Cut a network into parts: a new one begins with each layer that `starts` names."""
    names = [getattr(layer, "name", None) for layer in network.layers]
    at = [0, *(names.index(name) if name else -1 for name in starts), len(names)]
    if any(a >= b for a, b in itertools.pairwise(at)):
        raise ValueError(
            f"starts={list(starts)} would leave a stage empty: name layers in their order, of "
            f"{', '.join(filter(None, names[1:]))}."
        )
    shapes = [before for _, before, _ in walk(network)]
    return [
        replace(network, layers=network.layers[a:b], input=shapes[a])
        for a, b in itertools.pairwise(at)
    ]


def stages(
    network: Network, starts: Sequence[str], devices: Sequence[str], *, seed: int = 0
) -> list[Stage]:
    """Cut a network and give each part its device and its weights, in a graph or in today's code.

    The weights start as those of the whole network do with this seed. A device may have several
    stages.
    """
    import tensorflow as tf

    checked(devices)
    v1, values, made = tf.compat.v1, initial(network, seed), []
    today = v1.executing_eagerly_outside_functions()
    for part, device in zip(cut(network, starts), devices, strict=True):
        with tf.device(device):
            weights = {name: tf.Variable(values[name], name=name) if today
                       else v1.get_variable(name, initializer=values[name])
                       for name in shapes(part)}  # fmt: skip
        made.append(Stage(device, functools.partial(logits, part), weights))
    return made


def workload(network: Network, cut: str | None = None) -> Workload:
    """Count what a network asks for; cut names the first layer on the second device."""
    enters = {getattr(layer, "name", ""): before for layer, before, _ in walk(network)}
    crossing = None if cut is None else 2 * 4 * math.prod(enters[cut])  # bytes an example
    return Workload(network.name, parameters(network), flops(network), crossing)
