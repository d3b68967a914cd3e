"""What is wrong with a TF_CONFIG, before TensorFlow waits for an hour because of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from mgpu_helpers.cluster.addresses import parsed, taken
from mgpu_helpers.cluster.reach import SILENT, UNKNOWN, elsewhere, reach
from mgpu_helpers.wording import counted

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
    read = [_read(given) for given in tf_configs or (None,)]
    said = [sentence for one in read for sentence in (one if isinstance(one, list) else form(one))]
    if said:
        return list(dict.fromkeys(said))
    if len(read) > 1:
        return _compared(read)
    config = read[0]
    return _slurm(config) + _proxy(config) + sum(network(listed(config), _place(config)), [])


def network(workers: Mapping[str, str], own: str | None) -> tuple[list[str], list[str]]:
    """Say what is wrong with this machine's own address, and what with those of the others."""
    mine, others = [], []
    for (name, address), found in zip(workers.items(), reach(list(workers.values())), strict=True):
        host, port = parsed(address)
        if found.state == UNKNOWN:
            others.append(
                f"The host of {name}, {host!r}, does not resolve here: TensorFlow would wait for "
                "it for an hour. Use a name or a number that every machine knows."
            )
        elif name == own and elsewhere(found.numbers):
            mine.append(
                f"This machine is told that it is {name} at {address}, which is not an address of "
                "its own: give each machine its own index, and the address that it has itself."
            )
        elif name == own and taken(port):
            mine.append(
                f"Port {port} of {name}, this worker, is taken on this machine: end what listens "
                "there, or choose another port."
            )
        elif name != own and found.state == SILENT:
            others.append(
                f"{name.capitalize()} at {address} does not answer, not even that nobody listens: "
                "start its machine, or open the port in its firewall."
            )
    return mine, others


def listed(config: Mapping[str, Any]) -> dict[str, str]:
    """Name every task of a TF_CONFIG that is in order, with its address."""
    return {
        f"{kind} {i}": address
        for kind, addresses in config["cluster"].items()
        for i, address in enumerate(addresses)
    }


def _read(given: Config) -> dict[str, Any] | list[str]:
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
    loopback = [name for name, address in listed(config).items() if _loopback(parsed(address)[0])]
    if 0 < len(loopback) < len(names):
        said.append(
            f"{loopback[0].capitalize()} is at {listed(config)[loopback[0]]}, where only its own "
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
    if kind == "evaluator" and kind not in config["cluster"]:
        return []
    if kind not in config["cluster"]:
        return [f"The task is a {kind!r}, and the cluster has none: it has a {_kinds(config)}."]
    n = len(config["cluster"][kind])
    if isinstance(index, bool) or not str(index).isdecimal() or int(index) >= n:
        told = "of 0" if n == 1 else f"from 0 to {n - 1}"
        there = f"there {'is' if n == 1 else 'are'} {counted(n, kind)}"
        return [f"The task is {kind} {index}, but {there}: give an index {told}."]
    return []


def _kinds(config: Mapping[str, Any]) -> str:
    return " and a ".join(config["cluster"])


def _place(config: Mapping[str, Any]) -> str:
    return f"{config['task']['type']} {int(config['task']['index'])}"


def _loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _compared(configs: list[dict[str, Any]]) -> list[str]:
    """Say where the TF_CONFIGs of several workers do not fit together."""
    said = []
    lists = [listed(config) for config in configs]
    places = [_place(config) for config in configs]
    for place in dict.fromkeys(each for each in places if places.count(each) > 1):
        said.append(f"{counted(places.count(place), 'TF_CONFIG')} say that they are {place}.")
    for place, one in zip(places, lists, strict=True):
        if len(one) != len(lists[0]):
            said.append(
                f"{places[0].capitalize()} lists {counted(len(lists[0]), 'address')[:-1]}es, "
                f"{place} lists {len(one)}: give all the same list."
            )
        elif one != lists[0]:
            wrong = next(name for name in one if one[name] != lists[0].get(name))
            said.append(
                f"{places[0].capitalize()} has {wrong} at {lists[0].get(wrong)}, {place} has it "
                f"at {one[wrong]}: give all the same list in the same order."
            )
    missing = [name for name in lists[0] if name not in places]
    if missing and not said:
        said.append(f"There is no TF_CONFIG for {', '.join(missing)}: the others would wait.")
    return said


def _slurm(config: Mapping[str, Any]) -> list[str]:
    """Compare with what Slurm says, where a worker is a task of srun."""
    tasks, nodes = (
        int(os.environ.get(name, "0") or 0)
        for name in ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES")
    )
    n = len(listed(config))
    said = []
    if tasks > 1 and tasks != n:
        said.append(f"TF_CONFIG lists {n} addresses, and srun has started {tasks} tasks.")
    if nodes > 1 and n > 1 and all(_loopback(parsed(a)[0]) for a in listed(config).values()):
        said.append(
            f"All addresses are on loopback, and srun has started {nodes} machines: use their "
            "names in the network."
        )
    return said


def _proxy(config: Mapping[str, Any]) -> list[str]:
    """Say whether gRPC, which all workers speak, would ask a proxy for another worker."""
    names = ("grpc_proxy", "https_proxy", "http_proxy")
    proxy = next((name for name in names if os.environ.get(name)), None)
    without = os.environ.get("no_grpc_proxy", os.environ.get("no_proxy", ""))
    direct = tuple(filter(None, (part.strip() for part in without.split(","))))
    hosts = [parsed(address)[0] for address in listed(config).values()]
    asked = [host for host in dict.fromkeys(hosts) if not host.endswith(direct)]
    if not proxy or not asked:
        return []
    return [
        f"{proxy} is set, and gRPC would ask that proxy for {', '.join(asked)}: TensorFlow would "
        f'wait for an hour. Set no_proxy="{",".join((*direct, *asked))}".'
    ]
