"""The checks of lesson 13's exercises."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, listed, numbers
from mgpu_helpers.wording import counted


@exercise
def rows_of(function: Callable[[int, int, int], Any]) -> str:
    """Check exercise 1 of lesson 13: which rows of a batch each worker reads."""
    draw = np.random.default_rng()
    cases = [(24, 2), (10, 3), (7, 4), (2, 3), (48, 1)]
    cases += [(int(draw.integers(20, 400)), int(draw.integers(2, 20))) for _ in range(5)]
    for count, workers in cases:
        of = f"{count} rows and {counted(workers, 'worker')}"
        shards = [_rows(function, count, workers, index) for index in range(workers)]
        for index in reversed(range(workers)):  # each worker is a process and asks for itself
            if _rows(function, count, workers, index) != shards[index]:
                raise NotYet(
                    f"with {of} worker {index} gets other rows when it asks a second time: let "
                    "them follow from count, workers and index alone"
                )
        times = Counter(row for shard in shards for row in shard)
        strange = [row for row in times if not 0 <= row < count]
        never = [row for row in range(count) if not times[row]]
        twice = [row for row in range(count) if times[row] > 1]
        if strange:
            raise NotYet(f"with {of} somebody reads row {strange[0]}, which is not there")
        if twice:
            raise NotYet(f"with {of} row {twice[0]} is read {times[twice[0]]} times")
        if never:
            raise NotYet(f"with {of} nobody reads row {never[0]}")
        sizes = [len(shard) for shard in shards]
        if max(sizes) - min(sizes) > 1:
            raise NotYet(
                f"with {of} one reads {max(sizes)} and another {min(sizes)}: the others wait for "
                "the one with most, so let the shards differ by one row at most"
            )
    return f"{len(cases)} batches, each row read once"


def _rows(function: Callable[[int, int, int], Any], *args: int) -> list[int]:
    got = listed(call(function, *args), "return the numbers of the rows")
    if got:
        flat = numbers(got, (len(got),), "return a flat list of the rows' numbers")
        strange = [row for row in flat if not float(row).is_integer()]
        if strange:
            raise NotYet(f"the numbers of rows are whole, not {strange[0]}")
    return [int(row) for row in got]


@exercise
def step_seconds(function: Callable[[float, int, float, float], Any]) -> str:
    """Check exercise 2 of lesson 13: the time of an all-reduce over a slow link."""
    draw = np.random.default_rng()
    five = 5_000_000  # bytes are whole numbers
    cases = [(five, 2, 200.0, 0.0), (five, 2, 50.0, 0.016), (five, 3, 200.0, 0.033)]
    size, megabits, unlimited = draw.uniform([1e6, 20, 0.1], [9e8, 900, 1]).tolist()
    cases.append((round(size), int(draw.integers(4, 40)), megabits, unlimited))
    for size, workers, megabits, unlimited in cases:
        bare = 2 * (workers - 1) / workers * size / (megabits * 1e6 / 8)
        right = bare / 0.956 + unlimited
        way = "return a number of seconds"
        got = float(numbers(call(function, size, workers, megabits, unlimited), (), way))
        of = f"{size / 1e6:.0f} MB, {workers} workers, {megabits:.0f} Mbit/s"
        for wrong, hint in (
            (2 * workers * bare / 2 / 0.956 + unlimited,
             "in a ring each worker sends 2(n - 1)/n of the gradients, not 2(n - 1) times all"),
            (bare / 2 / 0.956 + unlimited,
             "the ring goes round twice: once to add the pieces up, once to hand out the sums"),
            ((bare + unlimited) / 0.956, "the unlimited time is as it was measured"),
            (bare / 8 / 0.956 + unlimited, "a byte has 8 bits"),
            (bare * 8 / 0.956 + unlimited, "a megabit is an eighth of a megabyte"),
            (bare / 0.956 * 1000 + unlimited, "return seconds"),
            (bare / 0.956 / 1.048576 + unlimited, "a megabit is a million bits"),
            (bare + unlimited, "TCP carries 95.6 % of the rate"),
            (bare * 0.956 + unlimited, "less gets through than the rate, so it takes longer"),
            (bare / 0.956, "the time without a limit comes on top"),
        ):  # fmt: skip
            if np.isclose(got, wrong) and not np.isclose(got, right):
                raise NotYet(f"{hint} ({of}: {right:.4g} s, not {got:.4g})")
        if not np.isclose(got, right):
            raise NotYet(f"{of} take {right:.4g} s, not {got:.4g}")
    return f"{len(cases)} links; 5 MB on 2 workers at 200 Mbit/s take 0.21 s and the unlimited time"


@exercise
def saves(function: Callable[[Any], Any]) -> str:
    """Check exercise 3 of lesson 13: who writes the checkpoint."""
    draw = np.random.default_rng()
    for n in (2, 3, 12):
        hosts = [f"host{i + 1}:20000" for i in draw.permutation(99)[: n + 1]]
        hosts, other = hosts[:n], hosts[n:]
        workers = {"worker": hosts}
        with_chief = {"chief": hosts[:1], "worker": hosts[1:], "ps": other}
        with_ps = {"ps": other, "worker": hosts}
        two_kinds = {"chief": hosts[:1], "worker": hosts[1:]}
        for cluster, kind, index, right in (
            (workers, "worker", 0, True),
            *((workers, "worker", i, False) for i in range(1, n)),
            (with_chief, "chief", 0, True),
            (with_chief, "worker", 0, False),
            (two_kinds, "chief", 0, True),
            (two_kinds, "worker", 0, False),
            (with_chief, "ps", 0, False),
            (with_ps, "ps", 0, False),
            (with_ps, "worker", 0, True),
            (workers, "evaluator", 0, False),
            (with_chief, "evaluator", 0, False),
            ({"worker": ["chief.example:20000", *hosts]}, "worker", 0, True),
        ):
            config = {"cluster": cluster, "task": {"type": kind, "index": index}}
            written = ({}, {"indent": 1}, {"separators": (",", ":")})[draw.integers(3)]
            for sort in (True, False):  # the order in JSON means nothing
                text = json.dumps(config, sort_keys=sort, **written)
                _judge_saves(function, text, right, f"{kind} {index}", cluster)
    _judge_saves(function, None, True, "a process without TF_CONFIG", {})
    return "one writes, and the others do not"


def _judge_saves(
    function: Callable[[Any], Any], given: str | None, right: bool, who: str,
    cluster: dict[str, Any],
) -> None:
    got = call(function, given)
    if not isinstance(got, (bool, np.bool_)):
        raise NotYet(f"return True or False, not {got!r}")
    if bool(got) != right:
        listed_as = ", ".join(counted(len(hosts), kind) for kind, hosts in cluster.items())
        where = f" of a cluster with {listed_as}" if cluster else ""
        if "chief.example" in str(cluster):
            where += ", where a worker's host is called chief.example,"
        raise NotYet(f"{who}{where} {'saves' if right else 'must not save'}")
