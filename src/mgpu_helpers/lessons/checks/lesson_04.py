"""The checks of lesson 04's exercises."""

from __future__ import annotations

import heapq
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np

from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, numbers
from mgpu_helpers.wording import counted


@exercise
def outside(function: Callable[[str, str], Any]) -> str:
    """Check exercise 1 of lesson 04: from TensorFlow's number of a GPU to nvidia-smi's."""
    draw = np.random.default_rng()
    fixed = [3, 0, 12, 5, 7, 1, 2, 4, 6, 8, 9, 10]
    questions = [(fixed, inside) for inside in (0, 1, 2, 11)]
    for _ in range(6):
        gpus = [int(number) for number in draw.permutation(16)[: draw.integers(3, 15)]]
        questions.append((gpus, int(draw.integers(len(gpus)))))
    for gpus, inside in questions:
        visible, device, right = ",".join(map(str, gpus)), f"/GPU:{inside}", gpus[inside]
        got = call(function, visible, device)
        if isinstance(got, str) and got.strip() == str(right):
            raise NotYet(f"{got!r} is right, but text: make it a number")
        got = numbers(got, (), "return nvidia-smi's number of the GPU")
        if got == right:
            continue
        if got == inside:
            raise NotYet(f"{got} is the number inside; {visible!r} says which GPU that is outside")
        raise NotYet(f"with {visible!r}, {device} is {right}, not {got}")
    return f"{len(questions)} GPUs found"


@exercise
def environment(function: Callable[[int], Any]) -> str:
    """Check exercise 2 of lesson 04: an environment for a child that sees one GPU."""
    draw = np.random.default_rng()
    first, second = int(draw.integers(2, 9)), int(draw.integers(12, 16))
    with mock.patch.dict(os.environ, MGPU_MARK="kept"):  # puts back what the function changes
        given, before = [], {}
        for number, order in ((first, None), (second, "FASTEST_FIRST")):
            os.environ.pop("CUDA_DEVICE_ORDER", None)  # devices.setup has set it here
            if order:  # as somebody's shell may have it
                os.environ["CUDA_DEVICE_ORDER"] = order
            before = dict(os.environ)
            given.append(call(function, number))  # kept, as a queue keeps them
            if dict(os.environ) != before:
                raise NotYet("it changed this notebook's environment: give a changed copy")
        for one in given:
            _check_environment(one)
        if given[0] is given[1]:
            raise NotYet("the second call gave the first one's dict again: make a copy each time")
        for number, one in zip((first, second), given, strict=True):
            _check_child(number, one, before)
    return "each child saw its GPU alone, and nothing changed here"


def _check_environment(given: Any) -> None:
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise NotYet(f"an environment is a dict of text; it returns a value of type {kind}")
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise NotYet(f"the value of {name} is not text: write str(...)")


def _check_child(number: int, given: Mapping[str, str], before: Mapping[str, str]) -> None:
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    program = f"import json, os; print(json.dumps([os.environ.get(name) for name in {names}]))"
    child = [sys.executable, "-c", program]
    done = call(subprocess.run, child, env=given, capture_output=True, text=True, check=True)
    visible, ordered = json.loads(done.stdout)
    if visible is None or visible.strip() != str(number):
        raise NotYet(f"for GPU {number} the child sees CUDA_VISIBLE_DEVICES={visible!r}")
    if ordered != "PCI_BUS_ID":
        raise NotYet("CUDA may count in another order than nvidia-smi: set CUDA_DEVICE_ORDER")
    if any(given.get(name) != text for name, text in before.items() if name not in names):
        raise NotYet("the rest of the environment is lost: start from a copy of os.environ")


@exercise
def wall(function: Callable[[list[float], int], Any]) -> str:
    """Check exercise 3 of lesson 04: how long a queue takes that keeps its order."""
    draw = np.random.default_rng()
    queues: list[tuple[list[float], int]] = [
        ([2, 2, 3], 2), ([3], 2), ([5, 1, 1, 1], 2), ([1, 2, 3, 4], 1), ([4, 3, 3, 2, 2], 3),
        ([2.5, 2, 0.75, 1.5], 2),
    ]  # fmt: skip
    for n in (1, 2, 3, 4, 5, 7):
        queues += [(draw.integers(1, 20, draw.integers(n, 4 * n + 3)).tolist(), n)] * 2
    for seconds, n in queues:
        right = _wall(seconds, n)
        given = list(seconds)
        got = numbers(call(function, given, n), (), "return a number of seconds")
        if given != seconds:
            raise NotYet("it changed the list of seconds that it was given: work on a copy")
        if np.isclose(got, right):
            continue
        if np.isclose(got, sum(seconds) / n):
            raise NotYet(f"{got:g} is {seconds} shared out evenly: a job cannot be cut in two")
        why = f"{seconds} on {counted(n, 'device')} take {right:g}, not {got:g}"
        raise NotYet(f"{why}: in their order, each takes the first device that is free")
    return f"{len(queues)} queues"


def _wall(seconds: Sequence[float], n: int) -> float:
    ends = [0.0] * n
    for length in seconds:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)
