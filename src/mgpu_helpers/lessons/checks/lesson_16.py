"""The checks of lesson 16's exercises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np

from mgpu_helpers.lessons.checks.judge import call, exercise, expect, same_as


def _visible() -> Iterator[tuple[str, str]]:
    draw = np.random.default_rng()
    for inside in (1, 0, 2, 11):  # with /GPU:1 each usual mistake gives another number
        yield "3,4,12,5,7,1,2,6,8,9,13,10", f"/GPU:{inside}"
    for _ in range(6):
        gpus = draw.permutation(16)[: draw.integers(3, 15)]
        yield ",".join(map(str, gpus)), f"/GPU:{draw.integers(len(gpus))}"


def _inverse(visible: str, device: str) -> int:
    listed = visible.split(",")
    return listed.index(device[5:]) if device[5:] in listed else -1


#: Check exercise 1 of lesson 16: from TensorFlow's number of a GPU to nvidia-smi's.
outside = same_as(
    lambda visible, device: int(visible.split(",")[int(device[5:])]),
    _visible,
    told=lambda right, got, visible, device: f"with {visible!r}, {device} is {right}, not {got}",
    way="return nvidia-smi's number of the GPU",
    wrong={
        "you return the number inside; CUDA_VISIBLE_DEVICES says which GPU has it":
            lambda visible, device: int(device[5:]),
        "the list keeps its order: it is not sorted":
            lambda visible, device: sorted(map(int, visible.split(",")))[int(device[5:])],
        "you look for the number inside in the list; it is a place in that list": _inverse,
    },
    yes="right for 10 GPUs",
)


@exercise
def environment(function: Any) -> str:
    """Check exercise 2 of lesson 16: an environment for a child that sees one GPU."""
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
            expect(dict(os.environ) == before,
                   "it changed this notebook's environment: give a changed copy")
        for one in given:
            kind = type(one).__name__
            expect(isinstance(one, Mapping),
                   f"an environment is a dict of text; it returns a value of type {kind}")
            for name, value in one.items():
                text = isinstance(name, str) and isinstance(value, str)
                expect(text, f"the value of {name} is not text: write str(...)")
        expect(given[0] is not given[1],
               "the second call gave the first one's dict again: make a copy each time")
        for number, one in zip((first, second), given, strict=True):
            _check_child(number, one, before)
    return "each child saw its GPU alone, and nothing changed here"


def _check_child(number: int, given: Mapping[str, str], before: Mapping[str, str]) -> None:
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    program = f"import json, os; print(json.dumps([os.environ.get(name) for name in {names}]))"
    child = [sys.executable, "-c", program]
    done = call(subprocess.run, child, env=given, capture_output=True, text=True, check=True)
    visible, ordered = json.loads(done.stdout)
    expect((visible or "").strip() == str(number),
           f"for GPU {number} the child sees CUDA_VISIBLE_DEVICES={visible!r}")
    expect(ordered == "PCI_BUS_ID",
           "CUDA may count in another order than nvidia-smi: set CUDA_DEVICE_ORDER")
    expect(all(given.get(name) == text for name, text in before.items() if name not in names),
           "the rest of the environment is lost: start from a copy of os.environ")
