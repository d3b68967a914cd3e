"""What is wrong with a TF_CONFIG, before TensorFlow waits for an hour because of it."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from mgpu_helpers._formatting import counted
from mgpu_helpers.cluster.addresses import parsed
from mgpu_helpers.cluster.probing import network

TYPES = ("chief", "worker", "ps", "evaluator")
Config = Mapping[str, Any] | str | None


def check(*tf_configs: Config) -> list[str]:
    """Say what is wrong with a TF_CONFIG: a sentence each, [] where nothing is seen; in 2 seconds.

    A TF_CONFIG is a dictionary or JSON; None, or nothing, is the one in the environment. Call it on
    the worker's machine before TensorFlow starts: it asks whether the other hosts can be reached,
    whether the address is one of this machine and its port is free. Of several TF_CONFIGs, those
    of all workers, it only compares what they say.

    A worker that has not started looks like one that will: nobody listens on its port yet. That is
    no mistake here; `run` notices when it stays so.

    >>> check({"cluster": {"worker": ["127.0.0.1:20000"]}, "task": {"type": "worker", "index": 1}})
    ['The task is worker 1, but there is 1 worker: give an index of 0.']
    """
    configs = []
    try:
        configs = [_read(each) for each in tf_configs or (None,)]
        problems = [problem for config in configs for problem in text_problems(config)]
    except ValueError as error:
        problems = [str(error)]
    if problems:
        return list(dict.fromkeys(problems))
    if len(configs) > 1:
        return _compared(configs)
    config = configs[0]
    return _slurm(config) + _proxy(config) + sum(network(_listed(config), _task(config)), [])


def _read(given: Config) -> Mapping[str, Any]:
    """Return what a TF_CONFIG says; raise a ValueError about one that says nothing."""
    write = 'write json.dumps({"cluster": {"worker": [...]}, "task": {...}}).'
    if given is None:
        given = os.environ.get("TF_CONFIG", "")
        if not given.strip():
            raise ValueError(
                "TF_CONFIG is not set: a worker without it trains alone, and says nothing, while "
                "the others wait for it."
            )
    try:
        config = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError) as error:
        raise ValueError(f"TF_CONFIG is not JSON ({error}): {write}") from None
    if not isinstance(config, Mapping) or not isinstance(config.get("cluster"), Mapping):
        raise ValueError(f"TF_CONFIG has no cluster: {write}")
    return config


def _listed(config: Mapping[str, Any]) -> dict[str, str]:
    """Name every task of a TF_CONFIG that is in order, with its address."""
    return {
        f"{kind} {i}": address
        for kind, addresses in config["cluster"].items()
        for i, address in enumerate(addresses)
    }


def text_problems(config: Mapping[str, Any]) -> list[str]:
    """Say what is wrong in the text alone."""
    problems = []
    for kind, addresses in config["cluster"].items():
        if kind not in TYPES:
            problems.append(f"The cluster has {kind!r}, which is no task: use {', '.join(TYPES)}.")
        if not isinstance(addresses, (list, tuple)) or not addresses:
            problems.append(f"The cluster's {kind} is {addresses!r}: give a list of addresses.")
            continue
        for address in addresses:
            try:
                parsed(address)
            except ValueError as error:
                problems.append(str(error))
    if not {"worker", "chief"} & set(config["cluster"]):
        problems.append('The cluster has no workers: list their addresses under "worker".')
    if problems:
        return problems
    listed = _listed(config)
    for address, count in Counter(listed.values()).items():
        if count > 1:
            names = [name for name in listed if listed[name] == address]
            problems.append(
                f"{' and '.join(names).capitalize()} have the same address, {address}: "
                "give each its own port or host."
            )
    local = [name for name, address in listed.items() if _loopback(address)]
    if 0 < len(local) < len(listed):
        problems.append(
            f"{local[0].capitalize()} is at {listed[local[0]]}, where only its own "
            "machine finds it, and others are elsewhere: use the machine's name in the network."
        )
    return problems + _task_problems(config)


def _task_problems(config: Mapping[str, Any]) -> list[str]:
    task, cluster = config.get("task"), config["cluster"]
    if not isinstance(task, Mapping) or not {"type", "index"} <= set(task):
        return [
            "TF_CONFIG has no task with a type and an index: this process would train alone, and "
            'the others would wait for it. Add "task": {"type": "worker", "index": 0}.'
        ]
    kind, index = task["type"], task["index"]
    n = 1 if kind == "evaluator" else 0  # which need not be listed
    if isinstance(kind, str) and kind in cluster:
        n = len(cluster[kind])
    if not n:
        has = " and a ".join(cluster)
        return [f"The task is a {kind!r}, and the cluster has none: it has a {has}."]
    if not re.fullmatch("[0-9]{1,9}", str(index)) or int(index) >= n:
        told = "of 0" if n == 1 else f"from 0 to {n - 1}"
        there = f"there {'is' if n == 1 else 'are'} {counted(n, kind)}"
        return [f"The task is {kind} {index}, but {there}: give an index {told}."]
    return []


def _task(config: Mapping[str, Any]) -> str:
    return f"{config['task']['type']} {int(config['task']['index'])}"


def _loopback(address: str) -> bool:
    """Say whether a host is what every machine calls itself."""
    host = parsed(address)[0]
    return host in ("localhost", "::1") or host.startswith("127.")


def _compared(configs: list[Mapping[str, Any]]) -> list[str]:
    """Say where the TF_CONFIGs of several workers do not fit together."""
    problems = []
    lists, tasks = list(map(_listed, configs)), list(map(_task, configs))
    first = lists[0]
    for task, count in Counter(tasks).items():
        if count > 1:
            problems.append(f"{counted(count, 'TF_CONFIG')} say that they are {task}.")
    for task, one in zip(tasks, lists, strict=True):
        if one != first:
            wrong = next(name for name in first | one if one.get(name) != first.get(name))
            problems.append(
                f"{tasks[0].capitalize()} has {wrong} at {first.get(wrong)}, {task} has it at "
                f"{one.get(wrong)}: give all the same list in the same order."
            )
    missing = [name for name in first if name not in tasks]
    if missing and not problems:
        problems.append(f"There is no TF_CONFIG for {', '.join(missing)}: the others would wait.")
    return problems


def _slurm(config: Mapping[str, Any]) -> list[str]:
    """Compare with what Slurm says, where a worker is a task of srun."""
    names = "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES"
    tasks, nodes = (int(os.environ.get(name) or 0) for name in names)
    listed = _listed(config)
    problems = []
    if tasks > 1 and tasks != len(listed):
        problems.append(
            f"TF_CONFIG lists {len(listed)} addresses, and srun has started {tasks} tasks."
        )
    if nodes > 1 and len(listed) > 1 and all(map(_loopback, listed.values())):
        problems.append(
            f"All addresses are on loopback, and srun has started {nodes} machines: use their "
            "names in the network."
        )
    return problems


def _proxy(config: Mapping[str, Any]) -> list[str]:
    """Say whether gRPC, which all workers speak, would ask a proxy for another worker."""
    names = ("grpc_proxy", "https_proxy", "http_proxy")
    proxy = next((name for name in names if os.environ.get(name)), None)
    without = os.environ.get("no_grpc_proxy", os.environ.get("no_proxy", ""))
    direct = tuple(filter(None, (part.strip() for part in without.split(","))))
    hosts = dict.fromkeys(parsed(address)[0] for address in _listed(config).values())
    asked = [host for host in hosts if not host.endswith(direct)]
    if not proxy or not asked:
        return []
    return [
        f"{proxy} is set, and gRPC would ask that proxy for {', '.join(asked)}: TensorFlow would "
        f'wait for an hour. Set no_proxy="{",".join((*direct, *asked))}".'
    ]
