"""What a TF_CONFIG says, and what is wrong in its text alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from mgpu_helpers.cluster.addresses import parsed
from mgpu_helpers.wording import counted

TYPES = ("chief", "worker", "ps", "evaluator")
Config = Mapping[str, Any] | str | None


def listed(config: Mapping[str, Any]) -> dict[str, str]:
    """Name every task of a TF_CONFIG that is in order, with its address."""
    return {
        f"{kind} {i}": address
        for kind, addresses in config["cluster"].items()
        for i, address in enumerate(addresses)
    }


def read(given: Config) -> dict[str, Any] | list[str]:
    """Return what a TF_CONFIG says, or the sentences about one that says nothing."""
    write = 'write json.dumps({"cluster": {"worker": [...]}, "task": {...}}).'
    if given is None:
        given = os.environ.get("TF_CONFIG", "")
        if not given.strip():
            return [
                "TF_CONFIG is not set: a worker without it trains alone, and says nothing, while "
                "the others wait for it."
            ]
    if not isinstance(given, Mapping):
        try:
            given = json.loads(given)
        except (ValueError, TypeError, RecursionError) as error:
            return [f"TF_CONFIG is not JSON ({error}): {write}"]
    if not isinstance(given, Mapping) or not isinstance(given.get("cluster"), Mapping):
        return [f"TF_CONFIG has no cluster: {write}"]
    return dict(given)


def form(config: dict[str, Any]) -> list[str]:
    """Say what is wrong in the text alone."""
    cluster, said = config["cluster"], []
    for kind, addresses in cluster.items():
        if kind not in TYPES:
            said.append(f"The cluster has {kind!r}, which is no task: use {', '.join(TYPES)}.")
        if not isinstance(addresses, (list, tuple)) or not addresses:
            said.append(f"The cluster's {kind} is {addresses!r}: give a list of addresses.")
            continue
        for address in addresses:
            try:
                parsed(address)
            except ValueError as error:
                said.append(str(error))
    if not ({"worker", "chief"} & set(cluster)):
        said.append('The cluster has no workers: list their addresses under "worker".')
    if said:
        return said
    names: dict[str, str] = {}
    for name, address in listed(config).items():
        if address in names:
            said.append(
                f"{names[address].capitalize()} and {name} have the same address, {address}: "
                "give each its own port or host."
            )
        names.setdefault(address, name)
    local = [name for name, address in listed(config).items() if loopback(parsed(address)[0])]
    if 0 < len(local) < len(names):
        said.append(
            f"{local[0].capitalize()} is at {listed(config)[local[0]]}, where only its own "
            "machine finds it, and others are elsewhere: use the machine's name in the network."
        )
    return said + _task(config)


def _task(config: dict[str, Any]) -> list[str]:
    task = config.get("task")
    if not isinstance(task, Mapping) or not {"type", "index"} <= set(task):
        return [
            "TF_CONFIG has no task with a type and an index: this process would train alone, and "
            'the others would wait for it. Add "task": {"type": "worker", "index": 0}.'
        ]
    kind, index = task["type"], task["index"]
    number = not isinstance(index, bool) and re.fullmatch("[0-9]{1,9}", str(index))
    if kind == "evaluator" and kind not in config["cluster"]:
        return [] if number else [f"The task is evaluator {index}: give an index of 0."]
    if not isinstance(kind, str) or kind not in config["cluster"]:
        return [f"The task is a {kind!r}, and the cluster has none: it has a {_kinds(config)}."]
    n = len(config["cluster"][kind])
    if not number or int(index) >= n:
        told = "of 0" if n == 1 else f"from 0 to {n - 1}"
        there = f"there {'is' if n == 1 else 'are'} {counted(n, kind)}"
        return [f"The task is {kind} {index}, but {there}: give an index {told}."]
    return []


def _kinds(config: Mapping[str, Any]) -> str:
    return " and a ".join(config["cluster"])


def place(config: Mapping[str, Any]) -> str:
    """Name the task that a TF_CONFIG is for."""
    return f"{config['task']['type']} {int(config['task']['index'])}"


def loopback(host: str) -> bool:
    """Say whether a host is what every machine calls itself."""
    return host in ("localhost", "::1") or host.startswith("127.")
