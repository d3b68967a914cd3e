"""What a function's graph does, as nodes: functions entered, variables as values until the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._later import tf
from mgpu_helpers.fit._recompute import AGAIN
from mgpu_helpers.graph.walk import BRANCHES, CALLS, LOOPS, called, ordered

READ, ASSIGN, GIVEN, CONSTANT = "ReadVariableOp", "AssignVariableOp", "Given", "Const"
CHANGES = {"AssignAddVariableOp": "AddV2", "AssignSubVariableOp": "Sub"}
COUNTS = (3, 9)  # TensorFlow's numbers of int32 and int64
OURS = {*CHANGES.values(), "Identity"}  # what is put in the place of other operations
# What has no kernel of XLA that does the same, or is to happen when nothing needs what it gives.
NEVER = {"Placeholder", "NoOp", "Assert", "CheckNumerics", "Print", "OptionalFromValue"}


class Node:
    """An operation of the program; `inputs` are pairs of a node and the number of its output.

    after: nodes that have to be done before, beside those of the inputs. made: what it has given
    in the graph that is made of the program.
    """

    def __init__(
        self, kind: str, inputs: Sequence[Any] = (), device: str = "", after: Iterable[Any] = (),
        name: str = "", attributes: Any = None, op: Any = None,
    ) -> None:  # fmt: skip
        self.kind, self.inputs, self.device, self.name = kind, [*inputs], device, name
        self.after, self.attributes, self.op = {*after}, dict(attributes or {}), op
        for value in inputs:  # a constant waits for nothing itself, as each user has its own
            if value[0].constant:
                self.after |= value[0].after
        self.made: list[Any] | None = None
        self.done_by: Any = None  # the operation that calls its island
        self.value = False  # of what is given: whether it stands for the variable that it was of
        self.pure = kind in OURS if op is None else can_compile(op)

    @property
    def types(self) -> list[Any]:
        """Give the types of what it gives."""
        if self.op is not None:
            return [x.dtype for x in self.op.outputs]
        if self.kind == GIVEN:
            return [x.dtype for x in self.made or ()]
        name = "T" if self.kind in OURS else "dtype"
        return [] if self.kind == ASSIGN else [self.attributes[name].type]

    @property
    def elements(self) -> int:
        """Give how many numbers its first output has; 0 where that is not known."""
        shapes = [x.shape for x in self.op.outputs] if self.op is not None else []
        return (shapes[0].num_elements() or 0) if shapes else 0

    @property
    def constant(self) -> bool:
        """Say whether it is a constant, of which each user may have its own."""
        return self.kind == CONSTANT

    @property
    def needs(self) -> set[Any]:
        """Give the nodes that have to be done before."""
        return {node for node, _ in self.inputs} | self.after


class Program:
    """The nodes of a graph in an order in which they can be done.

    A variable is read once and written once, at the end, or where an operation takes its handle
    that neither reads nor assigns it.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.values: dict[Any, Any] = {}  # of variables, by handle
        self.changed: dict[Any, Any] = {}  # the operation that changed it last
        self.readers: dict[Any, set[Node]] = defaultdict(set)
        self.behind: dict[Any, set[Node]] = {}  # what the next reading of a variable waits for

    def run(self, graph: Any, given: Sequence[Any]) -> tuple[list[Any], set[Node]]:
        """Append what a graph does with what it is given; give its outputs and side effects."""
        made: dict[tuple[str, int], Any] = {}
        does: dict[str, set[Node]] = {}  # the nodes that stand for an operation
        for x, value in zip(graph.inputs, given, strict=True):
            made[x.op.name, 0], does[x.op.name] = value, set()
        for op in ordered(graph):
            if op.name in does:
                continue
            inputs = [made[x.op.name, x.value_index] for x in op.inputs]
            before = {node for each in op.control_inputs for node in does[each.name]}
            outputs, nodes = self._append(op, inputs, before)
            made |= {(op.name, i): value for i, value in enumerate(outputs)}
            does[op.name] = nodes
        ends = {node for op in graph.control_outputs for node in does[op.name]}
        return [made[x.op.name, x.value_index] for x in graph.outputs], ends

    def _append(
        self, op: Any, inputs: list[Any], before: set[Node]
    ) -> tuple[list[Any], set[Node]]:
        if op.type in CALLS and not _private.is_compiled_call(op):
            (graph,) = called(op)
            outputs, ends = self.run(graph, inputs)
            return outputs, ends | before
        if op.type == "NoOp":
            return [], before
        if op.type == "IdentityN":  # of a gradient of one's own: nothing of it waits for the rest
            each = [
                self._add(Node("Identity", [value], op.device, before, op.name, _type_of(value)))
                for value in inputs
            ]
            return [(node, 0) for node in each], {*each}
        if op.type == READ:
            value = self._value(inputs[0], op)
            return [value], {value[0]} | before
        if op.type == "VariableShape":
            value = self._value(inputs[0], op)
            shape = _type_of(value) | {"out_type": op.node_def.attr["out_type"]}
            node = self._add(Node("Shape", [value], value[0].device, before, op.name, shape, op))
            node.pure = True
            return [(node, 0)], {node}
        if op.type == ASSIGN:
            handle, value = inputs
            self.values[handle], self.changed[handle] = value, op
            return [], {value[0]} | before
        attributes = dict(op.node_def.attr)
        if op.type in LOOPS | BRANCHES and can_compile(op):  # it reads variables, if any
            read = reads_in(op)
            values = [self._value(value, read[i]) if x.dtype == "resource" else value
                      for i, (x, value) in enumerate(zip(op.inputs, inputs, strict=True))]
            outputs, nodes = self._node(op, values, before)
            return _same_handles(op, outputs, inputs), nodes
        if op.type in CHANGES:
            handle, by = inputs
            value = self._value(handle, op)
            node = self._add(Node(
                CHANGES[op.type], [value, by], op.device or handle[0].device, before, op.name,
                {"T": attributes["dtype"]},
            ))  # fmt: skip
            if node.types[0] in COUNTS:  # of steps: one device counts them, and all may do the rest
                node.pure = False
            self.values[handle], self.changed[handle] = (node, 0), op
            return [], {node}
        pairs = zip(op.inputs, inputs, strict=True)
        handles = dict.fromkeys(value for x, value in pairs if x.dtype == "resource")
        for handle in handles:
            self._write(handle)
            before = before | self.behind.get(handle, set()) | self.readers.pop(handle, set())
        outputs, nodes = self._node(op, inputs, before)
        for handle in handles:
            self.values.pop(handle, None)
            self.behind[handle] = nodes
        return _same_handles(op, outputs, inputs), nodes

    def _node(self, op: Any, inputs: list[Any], before: set[Node]) -> tuple[list[Any], set[Node]]:
        attributes = dict(op.node_def.attr)
        node = self._add(Node(op.type, inputs, op.device, before, op.name, attributes, op))
        return [(node, i) for i in range(len(op.outputs))], {node}

    def _add(self, node: Node) -> Node:
        self.nodes.append(node)
        return node

    def _value(self, handle: Any, op: Any) -> Any:
        if handle[0].value:  # of a loop in an island, which is given what it reads
            return handle
        if handle not in self.values:
            kind = _private.resource_data(op.inputs[0]).shape_and_type[0].dtype
            node = self._add(Node(
                READ, [handle], handle[0].device, self.behind.get(handle, ()), op.name,
                {"dtype": tf.compat.v1.AttrValue(type=kind)}, op if op.type == READ else None,
            ))  # fmt: skip
            node.pure = False
            self.readers[handle].add(node)
            self.values[handle] = node, 0
        return self.values[handle]

    def _write(self, handle: Any) -> None:
        if (op := self.changed.pop(handle, None)) is not None:
            after = self.readers.pop(handle, set()) | self.behind.get(handle, set())
            node = self._add(Node(
                ASSIGN, [handle, self.values[handle]], "", after, op.name,
                {"dtype": op.node_def.attr["dtype"]},
            ))  # fmt: skip
            self.behind[handle] = {node}

    def finish(self, outputs: Iterable[Any]) -> None:
        """Write what has changed, and leave out what nobody needs."""
        for handle in [*self.changed]:
            self._write(handle)
        needed = {node for node, _ in outputs}
        kept = []
        for node in reversed(self.nodes):
            effect = node.kind == ASSIGN or (
                node.op is not None and node.kind != READ and not node.pure
                and node.op.op_def.is_stateful
            )  # fmt: skip
            if effect or node in needed:
                kept.append(node)
                needed |= node.needs
        self.nodes = kept[::-1]


def _same_handles(op: Any, outputs: list[Any], inputs: list[Any]) -> list[Any]:
    """Give the outputs; a loop gives the handles of variables that it was given."""
    return [inputs[i] if op.type in LOOPS and x.dtype == "resource" else value
            for i, (x, value) in enumerate(zip(op.outputs, outputs, strict=True))]


def _type_of(value: Any) -> dict[str, Any]:
    node, i = value
    return {"T": tf.compat.v1.AttrValue(type=tf.as_dtype(node.types[i]).as_datatype_enum)}


def can_compile(op: Any, inside: bool = False) -> bool:
    """Say whether XLA can compile an operation, and may do it whenever its inputs are there."""
    if inside and op.type in ("Placeholder", "NoOp", READ, "VariableShape"):
        return True
    if op.type in NEVER or not _private.compiles(op):
        return False
    types = {x.dtype.name for x in [*op.inputs, *op.outputs]}
    if op.type == "TensorListPopBack" and "int32" in types:
        return False  # a shape that a loop has kept: XLA has to know it before
    if op.type in LOOPS | BRANCHES | CALLS:
        nested = [each for graph in called(op) for each in graph.get_operations()]
        if op.type in LOOPS and any(map(_grows, called(op)[1].outputs)):
            return False
        if op.type in LOOPS and any(each.name.endswith(AGAIN) for each in nested):
            return False  # pieces of other sizes, which XLA cannot tie within a loop
        return "string" not in types and all(can_compile(each, True) for each in nested)
    return not types & {"resource", "string"} and not op.op_def.is_stateful


def _grows(x: Any) -> bool:
    """Say whether a loop makes something longer in each turn, as it does sparse gradients."""
    while x.op.type == "Identity":
        x = x.op.inputs[0]
    return x.op.type == "ConcatV2" and not x.shape.is_fully_defined()


def reads_in(op: Any) -> dict[int, Any]:
    """Find by the number of an input the operation that reads it in what a loop or branch runs."""
    found: dict[int, Any] = {}
    for graph in called(op):
        at = {x.op.name: i for i, x in enumerate(graph.inputs, len(op.inputs) - len(graph.inputs))}
        for each in graph.get_operations():
            if each.type in (READ, "VariableShape") and each.inputs[0].op.name in at:
                found[at[each.inputs[0].op.name]] = each
            elif each.type in LOOPS | BRANCHES | CALLS:
                for i, inner in reads_in(each).items():
                    if each.inputs[i].op.name in at:
                        found[at[each.inputs[i].op.name]] = inner
    return found
