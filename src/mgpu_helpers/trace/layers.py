"""Which layer of a model an operation belongs to, by its name; and other ways to group them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection

from mgpu_helpers.trace.records import Op

# Scopes around a layer's: of functions and loops, of gradients, towers, replicas and stages.
_AROUND = re.compile(
    r"(?<![^/])(?:Func/(?:(?:Stateful)?PartitionedCall(?:_\d+)?/)+(?:in|out)put(?:_control_node)?"
    r"|(?:Func|(?:Stateful)?PartitionedCall|\w+Optimizer|ConstantFolding|gradient_tape|gradients"
    r"|while|body|cond|then|else|(?:tower|replica)_\d+|stage_\d+/[FB]\d+|B\d+)(?:_\d+)?|_\d+)/"
)
# What is no scope at the end: an input of a function, and the reading of a variable.
_END = re.compile(
    r"(?:^|/)(?:in|out)put(?:_control_node)?/_\d+$|(?:^[^/]+|/[A-Z]\w*)/ReadVariableOp(?:_\d+)?$"
)
_OPTIMIZERS = {
    "adadelta", "adafactor", "adagrad", "adam", "adam_w", "adamax", "adamw", "ftrl",
    "gradientdescent", "lamb", "lion", "loss_scale_optimizer", "momentum", "muon", "nadam",
    "rm_sprop", "rmsprop", "schedule_free_adam_w", "sgd",
}  # fmt: skip


def layer(name: str, layers: Collection[str] | None = None, depth: int = 1) -> str:
    """Name the layer of an operation by the operation's name, also of the backward pass.

    Keras runs a layer in a scope called after it, with a number behind, in that of its model. So
    of two scopes in a row that end in a number the inner one, without it, is the layer; elsewhere
    the outermost scope is. Scopes of towers, stages, functions and gradients do not count. Besides
    layers there are "optimizer", "loss" (of `compile`), "variables", and "other" for what stands in
    no scope, as Keras's metrics do. With layers, the names of those to look for, an operation
    belongs to the outermost of them. With a depth of 2, a model within your model is in parts,
    which are called as `fit.use` names them, "backbone/block_3"; with 3 a layer of layers is, too.

    >>> layer("gradient_tape/functional_1/block_6_expand_1/convolution/Conv2DBackpropFilter")
    'block_6_expand'
    >>> layer("outer_1/inner_1/c1_1/MatMul"), layer("outer_1/inner_1/c1_1/MatMul", ["c1"])
    ('inner', 'c1')
    >>> layer("outer_1/inner_1/c1_1/MatMul", depth=2)
    'inner/c1'
    """
    if re.match(r"outside(_\d+)?/", name):  # where `function_step` keeps the variables
        return "variables"
    scopes = [s for s in _END.sub("/", _AROUND.sub("", name)).split("/")[:-1] if s]
    plain = [re.sub(r"_\d+$", "", scope) for scope in scopes]
    in_model = [a != b for a, b in zip(scopes, plain, strict=True)][:2] == [True, True]
    if layers:
        pairs = list(zip(plain, scopes, strict=True))
        for each in [*pairs[in_model:], *pairs[:in_model]]:
            if known := [scope for scope in each if scope in layers]:
                return known[0]
    if re.match(r"(Resource|Sparse)*Apply[A-Z]", name.rpartition("/")[2]):
        return "optimizer"
    if not scopes:
        return "other"
    if plain[0].lower() in _OPTIMIZERS:
        return "optimizer"
    if plain[0] == "compile_loss":
        return "loss"
    if not in_model:
        return scopes[0]
    numbered = itertools.takewhile(lambda i: scopes[i] != plain[i], range(1, len(scopes)))
    return "/".join(plain[i] for i in [*numbered][:depth])


def naming(by: str, layers: Collection[str] | None = None, depth: int = 1) -> Callable[[Op], str]:
    """Return what names an operation by "operation", "layer" or "type"; see `layer` for the rest.

    >>> naming("layer")(Op("encoder/MatMul", "MatMul", "/CPU:1", 0.0, 0.1))
    'encoder'
    """
    ways: dict[str, Callable[[Op], str]] = {
        "operation": lambda op: op.name,
        "layer": lambda op: layer(op.name, layers, depth),
        "type": lambda op: op.type,
    }
    if by not in ways:
        raise ValueError(f'by={by!r} names nothing: use "operation", "layer" or "type".')
    return ways[by]
