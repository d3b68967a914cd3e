"""The checks of lesson 04's exercises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import numpy as np

from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise
from mgpu_helpers.wording import counted


@exercise
def outside(function: Callable[[str, str], Any]) -> str:
    """Check exercise 1 of lesson 04: from TensorFlow's number of a GPU to nvidia-smi's."""
    visible = "3,0,12,5,7,1,2,4,6,8,9,10"
    for device, right in (("/GPU:0", 3), ("/GPU:1", 0), ("/GPU:2", 12), ("/GPU:11", 10)):
        got = call(function, visible, device)
        if str(got) == device[-1]:
            raise NotYet(f"{got} is the number inside; {visible!r} says who that is outside")
        if isinstance(got, str) and got.strip() == str(right):
            raise NotYet(f"{got!r} is right, but text: make it a number")
        if not np.array_equal(got, right):
            raise NotYet(f"with {visible!r}, {device} is {right}, not {got!r}")
    return "four GPUs found"


@exercise
def environment(function: Callable[[int], Any]) -> str:
    """Check exercise 2 of lesson 04: an environment for a child that sees one GPU."""
    program = (
        "import json, os; print(json.dumps([os.environ.get(name) for name in "
        "('CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER', 'MGPU_MARK')]))"
    )
    with mock.patch.dict(os.environ, MGPU_MARK="kept"):  # puts back what the function changes
        os.environ.pop("CUDA_DEVICE_ORDER", None)  # devices.setup has set it here
        before = dict(os.environ)
        given = call(function, 2)
        if dict(os.environ) != before:
            raise NotYet("it changed this notebook's environment: give a changed copy")
        if not isinstance(given, Mapping):
            raise NotYet(f"an environment is a dict of text, not {given!r}")
        numbers = [name for name, value in given.items() if not isinstance(value, str)]
        if numbers:
            raise NotYet(f"the value of {numbers[0]} is not text: write str(...)")
        child = [sys.executable, "-c", program]
        done = call(subprocess.run, child, env=given, capture_output=True, text=True, check=True)
    visible, ordered, mark = json.loads(done.stdout)
    if visible != "2":
        raise NotYet(f"the child sees CUDA_VISIBLE_DEVICES={visible!r}, not '2'")
    if ordered != "PCI_BUS_ID":
        raise NotYet("CUDA may count in another order than nvidia-smi: set CUDA_DEVICE_ORDER")
    if mark is None:
        raise NotYet("the rest of the environment is lost: start from a copy of os.environ")
    return "the child saw GPU 2 alone, and nothing changed here"


@exercise
def wall(function: Callable[[list[float], int], Any]) -> str:
    """Check exercise 3 of lesson 04: how long a queue takes that keeps its order."""
    for seconds, n, right in (
        ([2, 2, 3], 2, 5), ([3], 2, 3), ([5, 1, 1, 1], 2, 5), ([1, 2, 3, 4], 1, 10),
        ([4, 3, 3, 2, 2], 3, 5), ([3, 1, 4, 1, 5], 2, 9),
    ):  # fmt: skip
        got = call(function, list(seconds), n)
        if np.array_equal(got, right):
            continue
        if np.array_equal(got, sum(seconds) / n):
            raise NotYet(f"{got:g} is {seconds} shared out evenly: a job cannot be cut in two")
        why = f"{seconds} on {counted(n, 'device')} take {right}, not {got!r}"
        raise NotYet(f"{why}: in their order, each takes the first device that is free")
    return "six queues"
