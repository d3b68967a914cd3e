"""The checks of lesson 25's exercises."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mgpu_helpers.lessons.checks.judge import same_as

FULL = "/job:localhost/replica:0/task:0/device:GPU:1"


def _parts(name: str) -> tuple[str, int]:
    *_, kind, number = name.upper().replace("/", ":").split(":")
    return kind, int(number)


def _pairs() -> Iterator[tuple[str, str]]:
    yield "/gpu:1", "/GPU:1"
    yield "/GPU:1", "/device:GPU:1"
    yield FULL, "/GPU:1"
    yield "/GPU:0", "/GPU:2"
    yield "/GPU:1", "/GPU:11"
    yield "/CPU:0", "/GPU:0"
    yield "/CPU:11", "/GPU:11"
    yield "/device:gpu:12", "/job:localhost/replica:0/task:0/device:GPU:12"
    yield FULL, "/job:localhost/replica:0/task:0/device:GPU:0"


#: Check exercise 1 of lesson 25: whether two strings name one device. The order of the hints is
#: that of the cases: the first mistake that fails in a case names it.
same = same_as(
    lambda one, other: _parts(one) == _parts(other),
    _pairs,
    told=lambda right, got, one, other: f"{one} and {other} are "
    f"{'the same device' if right else 'two devices'}",
    wrong={
        "the word device: may stand before the kind":
            lambda one, other: one.lower() == other.lower(),
        "capitals do not matter": lambda one, other: one == other,
        "a number may have two digits":
            lambda one, other: one[-1] == other[-1] and _parts(one)[0] == _parts(other)[0],
        "compare the numbers, too": lambda one, other: _parts(one)[0] == _parts(other)[0],
        "compare whole kinds and numbers, not the last characters":
            lambda one, other: one[-5:].lower() == other[-5:].lower(),
        "compare the kinds, too": lambda one, other: _parts(one)[1] == _parts(other)[1],
    },
    unknown="compare the kind and the number behind it",
    yes="right for nine pairs of names",
)  # fmt: skip


def _programs() -> Iterator[tuple[str, str, str]]:
    yield "5,7,6,4", "3,0,2", "/gpu:1"
    yield "4,2,6", "1,2,0", "/GPU:0"
    yield "3,1,2", "2,0", "/device:GPU:1"
    draw = np.random.default_rng()
    numbers = draw.permutation(16)
    listed = draw.permutation(16)[:12]
    yield ",".join(map(str, numbers)), ",".join(map(str, listed)), "/gpu:11"


def _number(shown: str, listed: str, name: str) -> int:
    return int(shown.split(",")[int(listed.split(",")[_parts(name)[1]])])


def _sorted(text: str) -> str:
    return ",".join(sorted(text.split(","), key=int))


#: Check exercise 2 of lesson 25: nvidia-smi's number of a GPU, through two lists.
outside = same_as(
    _number,
    _programs,
    told=lambda right, got, shown, listed, name: (
        f"with {shown} shown and {listed} listed, {name} is GPU {right} outside, not {got:g}"
    ),
    way="return one whole number",
    wrong={
        "this is its number inside the program": lambda shown, listed, name: _parts(name)[1],
        "go through visible_device_list first":
            lambda shown, listed, name: int(shown.split(",")[_parts(name)[1]]),
        "what is listed counts among the GPUs that CUDA_VISIBLE_DEVICES shows":
            lambda shown, listed, name: int(listed.split(",")[_parts(name)[1]]),
        "visible_device_list keeps its order":
            lambda shown, listed, name: _number(shown, _sorted(listed), name),
        "CUDA_VISIBLE_DEVICES keeps its order":
            lambda shown, listed, name: _number(_sorted(shown), listed, name),
    },
    unknown="look the number up in the list, and what stands there in CUDA_VISIBLE_DEVICES",
    yes="right for four programs, one of them drawn at random",
)  # fmt: skip
