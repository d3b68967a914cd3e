"""Compile a step: what each device does between two exchanges becomes a function of XLA.

Keras compiles the whole step of one device. XLA cannot do that for several, since what goes from
one to another is no part of a compiled function. So the graph of the step is taken apart: reading
and writing variables, data, exchanges and what XLA does not know run as before, and all else that
a device can do without them is one compiled function, an island.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import math
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._later import tf
from mgpu_helpers._names import short
from mgpu_helpers.fit._program import CONSTANT, GIVEN, Node, Program
from mgpu_helpers.fit._recompute import AGAIN
from mgpu_helpers.graph.walk import BRANCHES, LOOPS, called

LEAST = 3  # operations that compute, for an island
SMALL = 0.25  # of an island's operations: less is not left for later
LEAST_SENT = 250_000  # numbers: some of the gradients, and no statistics of a layer
FREE = {"Identity", "Reshape", "Squeeze", "ExpandDims", "Shape", "StopGradient", CONSTANT}
TASK = re.compile(r"(?:^|/)([FB]\d+)(?:/|$)")  # in a name: of a stage, which is not to be joined
LENGTH = 1000  # of an axis that a graph does not know, where sizes are compared
EXCHANGE = re.compile("Collective|Nccl")
# What is no computing of a layer, and so nobody misses in an island.
OUTSIDE = re.compile(
    f"{EXCHANGE.pattern}|Iterator|Optional|Assert|Print|NoOp|Placeholder|VariableOp|Resource"
)


@contextlib.contextmanager
def compiling(model: Any, devices: Iterable[str], wanted: bool | None = None) -> Iterator[None]:
    """Let Keras make functions of a model in the block that are compiled on each of the devices.

    wanted: whether they are; None asks what the model was compiled with.
    """
    if model.run_eagerly or not (model.jit_compile if wanted is None else wanted):
        before, model.jit_compile = model.jit_compile, False
        try:
            yield
        finally:
            model.jit_compile = before
        return
    used = [*devices]
    if sum("GPU" in device for device in used) > 1:
        _say_what_was_tried()
    with _private.functions_by(lambda function, **_: Compiled(function, used)):
        yield


@functools.cache
def _say_what_was_tried() -> None:
    if len(tf.config.list_physical_devices("GPU")) > 1:
        warnings.warn(
            "XLA compiles what each GPU does between two exchanges. That was tried on one GPU in "
            "parts, not on several: compile the model with jit_compile=False to go without.",
            stacklevel=4,
        )


class Compiled:
    """A function of Keras's trainer, compiled in parts on the devices given.

    Batches of open lengths run uncompiled, since XLA would compile for each length.
    """

    def __init__(self, function: Callable[..., Any], devices: Sequence[str]) -> None:
        self.islands, self.known = Islands(devices), False
        self.plain = tf.function(function, reduce_retracing=True)
        self.run = tf.function(self._run, autograph=False, reduce_retracing=True)

    def __call__(self, *args: Any) -> Any:
        if not tf.executing_eagerly() or (open_length := _open_length(args)) and (
            self.known or self._say(
                f"batches of shape {open_length} may have many lengths, for each of which XLA "
                "would compile: the step runs without it. Give all one length, by padded_batch or "
                "tf.ensure_shape."
            )
        ):  # fmt: skip
            return self.plain(*args)
        self.plain.get_concrete_function(*args)  # here it may make variables
        try:
            made = self.run(*args)
        except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
            if "XLA" in str(error) or "tf2xla" in str(error):
                error.add_note("The model trains without XLA if compiled with jit_compile=False.")
            raise
        if self.islands.beside and not self.known:
            kind, name = next(iter(self.islands.beside.items()))
            self._say(f"XLA has no {kind} ({name}), which runs between what it compiles.")
        return made

    def _say(self, sentence: str) -> bool:
        self.known = True
        warnings.warn(sentence, stacklevel=4)
        return True

    def _run(self, *args: Any) -> Any:
        self.islands.sizes.clear()
        self.islands.alone.clear()
        step = self.plain.get_concrete_function(*args)
        given = filter(tf.is_tensor, tf.nest.flatten(args, expand_composites=True))
        outputs = self.islands.made_of(step.graph, [*given, *step.captured_inputs])
        return tf.nest.pack_sequence_as(step.structured_outputs, outputs, expand_composites=True)


class Islands:
    """The compiled functions of a step, of which equal ones are one for all devices."""

    def __init__(self, devices: Iterable[str]) -> None:
        gpus = tf.config.list_logical_devices("GPU")
        self.elsewhere = "/GPU:0" if gpus else "/CPU:0"  # where TensorFlow puts what has no place
        self.devices = {short(device) for device in devices}
        self.functions: dict[str, Any] = {}
        self.sizes: list[tuple[str, int]] = []  # of islands: where, and how many operations
        self.alone: Counter[str] = Counter()  # what runs as an operation of its own, by its kind
        self.beside: dict[str, str] = {}  # of these, what XLA does not know, with a name

    def made_of(self, graph: Any, given: Sequence[Any]) -> list[Any]:
        """Do in the graph that is traced now what another does, and give what it gives."""
        program = Program()
        starts: dict[int, Any] = {}  # of what is given twice one: a handle stands for its variable
        for x, known in zip(given, graph.inputs, strict=True):
            node = Node(GIVEN, device=getattr(x, "device", None) or "")
            node.made, node.value = [x], x.dtype != known.dtype
            starts.setdefault(id(x), (node, 0))
        outputs, _ = program.run(graph, [starts[id(x)] for x in given])
        program.finish(outputs)
        if self.devices:
            _place(program.nodes)
        else:  # inside an island, which is on one device
            for node in program.nodes:
                node.device = ""
        used = _users(program.nodes, outputs)
        units, parts = self._units(program.nodes, used)
        if any(_is_list(value) for part in parts for value in [*part.takes, *part.gives]):
            for node in program.nodes:  # XLA has lists of tensors within a function only
                node.pure = node.pure and not any(map(_is_list, _values(node)))
            units, parts = self._units(program.nodes, used)
        _let_differ(parts)
        for unit in units:
            (self._call if isinstance(unit, _Part) else self._copy)(unit)
        return [_made(value) for value in outputs]

    def _units(self, nodes: Sequence[Node], used: Any) -> tuple[list[Any], list[_Part]]:
        """Order the nodes; those of an island come as a part, which are listed, too.

        What is no island is done as soon as it can be. When nothing is left of that, each device
        takes all that it can do by then.
        """
        left = [node for node in nodes if not node.constant]
        tasks = {node: found[1] for node in left if (found := TASK.search(node.name))}
        if not any(task[1:] != "0" for task in tasks.values()):
            tasks = {}  # of one piece alone, which need no order
        keys = {node: self._device(node) and (self._device(node), tasks.get(node)) for node in left}
        number = {node: k for k, node in enumerate(left)}
        users: dict[Node, list[Node]] = defaultdict(list)
        waits = {}  # for how many others a node has to wait
        ready: dict[Any, list[int]] = defaultdict(list)
        for node in left:
            needs = [each for each in node.needs if each in number]
            waits[node] = len(needs)
            for each in needs:
                users[each].append(node)
            if not needs:
                ready[keys[node]].append(number[node])
        units: list[Any] = []

        def taken(own: list[int], key: Any) -> list[Node]:
            """Take what is ready, and what is ready when that is done, in the order of numbers."""
            heapq.heapify(own)
            found = []
            while own:
                node = left[heapq.heappop(own)]
                found.append(node)
                for user in users[node]:
                    waits[user] -= 1
                    if not waits[user]:
                        goes_to = own if keys[user] == key else ready[keys[user]]
                        heapq.heappush(goes_to, number[user])
            return found

        while ready:
            units += taken(ready.pop(None, []), None)
            now, ready = ready, defaultdict(list)
            for key, own in now.items():
                nodes = taken(own, key)
                others = {left[k] for other, them in ready.items() if other for k in them}
                parts = _by_exchange(nodes, users)
                for each in [each for part in parts for each in _in_two(part, users, others)]:
                    if sum(node.kind not in FREE for node in each) < LEAST:
                        units += each
                    else:
                        units.append(_Part(each, used))
        return units, [unit for unit in units if isinstance(unit, _Part)]

    def _device(self, node: Node) -> str | None:
        """Give the device of the island that a node is to be in; None for what is in none."""
        device = short(node.device or self.elsewhere)
        return device if node.pure and device in self.devices else None

    def _copy(self, node: Node) -> None:
        """Do what a node does by an operation of its own."""
        self.alone[node.kind] += 1
        if node.op is not None and not node.pure and not OUTSIDE.search(node.kind):
            if node.kind not in LOOPS | BRANCHES and not any(map(_is_list, _values(node))):
                self.beside.setdefault(node.kind, node.name)
        inputs = [_made(value) for value in node.inputs]
        waits = [op for each in node.after for op in _operations(each)]
        with tf.control_dependencies(waits):
            if node.kind in LOOPS | BRANCHES:
                node.made = self.entered(node, inputs)
            elif waits and not self.devices and node.name.endswith(AGAIN):
                node.made = _private.together(*inputs, *(op.outputs[0] for op in waits))[:1]
            else:
                node.made = _copied(node, inputs, node.device)
                for x, known in zip(node.made, node.op.outputs if node.op else (), strict=False):
                    x.set_shape(known.shape)

    def entered(self, node: Node, inputs: list[Any]) -> list[Any]:
        """Do what a loop or branches do, with islands inside."""
        if node.kind in ("Case", "StatelessCase"):
            each = [functools.partial(self.made_of, case, inputs[1:]) for case in called(node.op)]
            return list(tf.switch_case(inputs[0], each))
        if node.kind in BRANCHES:
            then, other = called(node.op)
            return list(tf.cond(
                inputs[0], lambda: self.made_of(then, inputs[1:]),
                lambda: self.made_of(other, inputs[1:]),
            ))  # fmt: skip
        condition, body = called(node.op)
        turns = [i for i, x in enumerate(body.inputs) if body.outputs[i] is not x]

        def whole(values: Iterable[Any]) -> list[Any]:
            now = [*inputs]
            for i, value in zip(turns, values, strict=True):
                now[i] = value
            return now

        def run(*values: Any) -> list[Any]:
            made = self.made_of(body, whole(values))
            return [made[i] for i in turns]

        return whole(tf.while_loop(
            lambda *values: self.made_of(condition, whole(values))[0], run,
            [inputs[i] for i in turns], [body.inputs[i].shape for i in turns],
            parallel_iterations=node.op.get_attr("parallel_iterations"),
        ))  # fmt: skip

    def _call(self, part: _Part) -> None:
        """Do what the nodes of a part do by a compiled function."""
        values = [_made(value) for value in part.takes]
        device = part.nodes[0].device or self.elsewhere
        with tf.device(device):
            values += [tf.constant(tf.make_ndarray(part.constants[k].attributes["value"].tensor))
                       for k in sorted(part.differ)]  # fmt: skip
        inside = {*part.nodes}
        waits = [op for node in part.nodes for each in node.after - inside
                 for op in _operations(each)]  # fmt: skip
        key = part.key()
        if key not in self.functions:
            self.functions[key] = tf.function(
                part.run, jit_compile=True, autograph=False, reduce_retracing=False
            )
        with tf.device(device), tf.control_dependencies([*dict.fromkeys(waits)]):
            made = self.functions[key](*values)
        self.sizes.append((short(device), len(part.nodes)))
        given = dict(zip(part.gives, made, strict=True))
        for (node, i), x in given.items():
            if node.op is not None:
                x.set_shape(node.op.outputs[i].shape)
        for node in part.nodes:
            node.made = [given.get((node, i)) for i in range(len(node.types))]
            node.done_by = made[0].op


def _by_exchange(nodes: list[Node], users: Mapping[Node, Sequence[Node]]) -> list[list[Node]]:
    """Let an island end where gradients leave for an exchange, which runs beside the next one."""
    sends = [
        node for node in nodes
        if node.elements > LEAST_SENT and any(EXCHANGE.search(user.kind) for user in users[node])
    ]  # fmt: skip
    parts, left = [], {*nodes}
    for send in sends[:-1]:
        needed, new = set[Node](), [send]
        while new:
            node = new.pop()
            if node in left:
                left.remove(node)
                needed.add(node)
                new += node.needs
        parts.append([node for node in nodes if node in needed])
    return [*parts, [node for node in nodes if node in left]]


def _in_two(
    nodes: list[Node], users: Mapping[Node, Sequence[Node]], ready: set[Node]
) -> list[list[Node]]:
    """Let an island first do what others are ready to begin with, if much is left for later.

    An island gives all at its end: a device that computes the loss of all, and then goes back
    through its own share, would let the others wait for that, too.
    """
    early = set[Node]()
    for node in reversed(nodes):
        if any(user in early or user in ready for user in users[node]):
            early.add(node)
    much = [node for node in nodes if node.elements != 1]  # no scalars, as Adam has many
    if not early or sum(node not in early for node in much) < SMALL * len(much):
        return [nodes]
    return [[node for node in nodes if (node in early) is first] for first in (True, False)]


class _Part:
    """The nodes of an island, what they take from outside, and what others take from them."""

    def __init__(self, nodes: list[Node], used: dict[Any, set[Any]]) -> None:
        self.nodes, inside = nodes, {*nodes}
        self.constants: list[Node] = []
        takes: dict[Any, None] = {}
        for node in nodes:
            for value in node.inputs:
                if value[0].constant:
                    self.constants.append(value[0])
                elif value[0] not in inside:
                    takes[value] = None
        self.takes = [*takes]
        self.gives = [(node, i) for node in nodes for i in range(len(node.types))
                      if used[node, i] - inside]  # fmt: skip
        self.number = {node: k for k, node in enumerate(nodes)}
        # Which of the constants other devices have another of: they are given to the function.
        self.differ: set[int] = set()

    def structure(self) -> str:
        """Describe what it computes, but for its constants."""
        at = {value: f"t{k}" for k, value in enumerate(self.takes)}
        lines = []
        for node in self.nodes:
            inputs = [at.get(value) or ("c" if value[0].constant
                                        else f"{self.number[value[0]]}:{value[1]}")
                      for value in node.inputs]  # fmt: skip
            after = sorted(self.number[each] for each in node.after if each in self.number)
            lines.append(f"{node.kind} {_attributes(node)} {inputs} {after}")
        return "\n".join([*lines, str([(self.number[node], i) for node, i in self.gives])])

    def key(self) -> str:
        """Describe what it computes."""
        own = [b"" if k in self.differ else _attributes(node)
               for k, node in enumerate(self.constants)]  # fmt: skip
        return f"{self.structure()}{own}"

    def run(self, *given: Any) -> list[Any]:
        """Compute what the nodes do: traced for XLA."""
        made = dict(zip(self.takes, given, strict=False))
        outside = dict(zip(sorted(self.differ), given[len(self.takes) :], strict=True))
        constants = iter(range(len(self.constants)))
        for node in self.nodes:
            inputs = []
            for value in node.inputs:
                if value[0].constant:
                    k = next(constants)
                    inputs.append(outside[k] if k in outside else _copied(value[0], (), None)[0])
                else:
                    inputs.append(made[value])
            before = [made[each, 0] for each in node.after if (each, 0) in made]
            if before and node.name.endswith(AGAIN):
                # XLA knows no control dependencies, and would compute once what is to run again.
                outputs = _private.together(*inputs, *before)[:1]
            elif node.kind in LOOPS | BRANCHES:
                outputs = Islands(()).entered(node, inputs)
            else:
                outputs = _copied(node, inputs, None)
            made |= {(node, i): x for i, x in enumerate(outputs)}
        return [made[value] for value in self.gives]


def _open_length(args: Any) -> Any:
    """Give a shape of which an axis other than the batch's is open; None without one."""
    specs = [getattr(x, "element_spec", x) for x in args]
    shapes = [tf.TensorShape(x.shape) for x in tf.nest.flatten(specs) if hasattr(x, "shape")]
    return next((x for x in shapes if x.rank is None or None in x.as_list()[1:]), None)


def _values(node: Node) -> list[Any]:
    """List what a node takes and gives."""
    return [*node.inputs, *((node, i) for i in range(len(node.types)))]


def _is_list(value: Any) -> bool:
    """Say whether a value is a list of tensors, such as a loop keeps for its gradient."""
    node, i = value
    return node.types[i] == "variant"


def _let_differ(parts: Iterable[_Part]) -> None:
    """Let parts that differ in constants alone be one function, which is given these."""
    alike: dict[str, list[_Part]] = defaultdict(list)
    for part in parts:
        alike[part.structure()].append(part)
    for same in alike.values():
        columns = zip(*([_attributes(node) for node in part.constants] for part in same),
                      strict=True)  # fmt: skip
        differ = {k for k, each in enumerate(columns) if len({*each}) > 1}
        for part in same:
            part.differ = differ


def _attributes(node: Node) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, value.SerializeToString(deterministic=True))
                 for name, value in sorted(node.attributes.items()) if name[0] != "_")  # fmt: skip


def _users(nodes: Iterable[Node], outputs: Iterable[Any]) -> dict[Any, set[Any]]:
    """Give who takes each value; None takes what is to be given."""
    used: dict[Any, set[Any]] = defaultdict(set)
    for node in nodes:
        for value in node.inputs:
            used[value].add(node)
    for value in outputs:
        used[value].add(None)
    return used


def _place(nodes: Sequence[Node]) -> None:
    """Place what nobody placed: with the largest that it takes, or else with what takes it."""
    for node in nodes:
        if node.pure and not node.device:
            own = [value for value in node.inputs if value[0].device and not value[0].constant]
            node.device = max(own, key=_size)[0].device if own else ""
    wanted: dict[Node, set[str]] = defaultdict(set)
    for node in reversed(nodes):
        if node.pure and not node.device and len(wanted[node]) == 1:
            (node.device,) = wanted[node]
        for value in node.inputs:
            wanted[value[0]].add(node.device)


def _size(value: Any) -> float:
    """Count the numbers of a value, as far as the graph knows them."""
    node, i = value
    if node.op is None:
        return LENGTH
    shape = node.op.outputs[i].shape
    return LENGTH if shape.rank is None else math.prod(n or LENGTH for n in shape)


def _made(value: Any) -> Any:
    node, i = value
    return (_copied(node, (), node.device) if node.constant else node.made)[i]


def _operations(node: Node) -> list[Any]:
    """List what stands in the new graph for a node: what others wait for when they wait for it."""
    if node.constant or node.kind == GIVEN:
        return []
    return [node.done_by or getattr(node.made[0], "op", node.made[0])] if node.made else []


def _copied(node: Node, inputs: Sequence[Any], device: str | None) -> list[Any]:
    """Make an operation like a node's in the graph that is traced now."""
    inside = device is None  # of an island, which is on one device
    attributes = {name: value for name, value in node.attributes.items()
                  if name != _private.PLACED and not (inside and name[0] == "_")}  # fmt: skip
    with tf.device(device):
        op = tf.compat.v1.get_default_graph().create_op(
            node.kind, [*inputs], node.types, name=node.name.rpartition("/")[2],
            attrs=attributes,
        )
    return op.outputs or [op]
