"""Which layer runs each operation of a step, in the forward pass and in the backward pass."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from graphlib import TopologicalSorter

from mgpu_helpers import _private
from mgpu_helpers.trace.step import Trace


def passes(
    trace: Trace, groups: Sequence[Sequence[str]], all_ran: bool
) -> tuple[dict[str, int], set[str]]:
    """Find the group of each operation, by number; and what is in the backward pass or after.

    A scope that is called like a layer says it; of a layer that several groups call, so does what
    is used. What has none is with the operations whose results it uses: in the forward pass with
    the last of them, in the backward pass with the first. A constant may be shared by many layers,
    and by both passes: it says nothing of what uses it. Nor does an empty list, which a gradient
    makes for a loop of the forward pass to fill.
    """
    makers: dict[str, list[str]] = {op.name: [] for op in trace.ops}
    loops = {op.name for op in trace.ops if op.type == "NextIteration"}
    lists = {op.name for op in trace.ops if op.type == "EmptyTensorList"}
    constants = {op.name for op in trace.ops if op.type == "Const"} | lists
    for maker, user in edges(trace):
        makers.setdefault(user, []).extend([] if maker in loops else [maker])
    numbers = defaultdict[str, list[int]](list)
    for i, group in enumerate(groups):
        for layer in group:
            numbers[layer].append(i)
    own = _scopes(trace, numbers)
    place: dict[str, int] = {}
    back: set[str] = set()
    for name in TopologicalSorter(makers).static_order():
        used = set(makers.get(name, ())) - constants
        named = re.search(r"(^|/)gradient(s|_tape)(_\d+)?/", name)
        if named and name not in lists or not back.isdisjoint(used):
            back.add(name)
        if name in own:
            of = [place[m] for m in used if m in place and (m in back or name not in back)]
            place[name] = _nearest(numbers[own[name]], of, name in back)
        elif found := [place[maker] for maker in used if maker in place]:
            place[name] = (min if name in back else max)(found)
    ran = {place.get(op.name) for op in trace.ops}
    missing = [group[0] for i, group in enumerate(groups) if group and i not in ran]
    if missing and (all_ran or len(missing) == sum(map(bool, groups))):
        raise ValueError(
            f"no operation of the trace is in the scope {missing[0]!r}: trace the model uncut, "
            f"with a tf.name_scope for each of {', '.join(group[0] for group in groups if group)}."
        )
    return place, back


def _nearest(groups: Sequence[int], used: Sequence[int], back: bool) -> int:
    """Choose the group that is next to what an operation uses, in the direction of its pass."""
    if back:
        return max((i for i in groups if not used or i <= min(used)), default=groups[0])
    return min((i for i in groups if i >= max(used, default=0)), default=groups[-1])


def edges(trace: Trace) -> set[tuple[str, str]]:
    """List which operation feeds which, as if nothing changed a layout on the way.

    On a GPU TensorFlow's layout optimizer puts transposes between. Those of one tensor are one,
    called after any of the operations that use it: the first convolution may read what has the name
    of its gradient. And each stage would make its own.
    """
    left = set(trace.edges) - set(trace.waits)
    read: dict[str, list[str]] = {}
    for maker, user in left:
        if user.endswith("-LayoutOptimizer"):
            read.setdefault(user, []).append(maker)
    found: set[tuple[str, str]] = set()
    while left:
        found |= {edge for edge in left if edge[0] not in read}
        left = {(maker, user) for via, user in left if via in read for maker in read[via]}
    return found


def _scopes(trace: Trace, layers: Collection[str]) -> dict[str, str]:
    """Find the layer that each operation is in by its scopes, by the plain names of the layers.

    Keras enters the scope of a layer twice, first to build it, so that TensorFlow calls the second
    "conv2d_1"; where there is a layer of that name too, its own is then "conv2d_1_2". A whole model
    may be called like one of its layers. Variables from outside have their own names.
    """
    paths = {
        op.name: op.name.removeprefix(_private.LOOP).split("/")[:-1]
        for op in trace.ops
        if not op.name.startswith("outside")
    }
    stems = {scope: re.sub(r"_\d+$", "", scope) for path in paths.values() for scope in path}
    suffixed = {stem for scope, stem in stems.items() if scope not in layers}
    known = {}
    for scope, stem in stems.items():
        if stem in layers and (scope not in layers or scope in suffixed):
            known[scope] = stem
        elif scope in layers:
            known[scope] = scope
    inside = {name: [scope for scope in path if scope in known] for name, path in paths.items()}
    first = {found[0] for found in inside.values() if found}
    skip = len(first) == 1 and any(len(found) > 1 for found in inside.values())
    return {name: known[found[skip]] for name, found in inside.items() if len(found) > skip}
