"""What is wrong with a TF_CONFIG, before TensorFlow waits for an hour because of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mgpu_helpers.cluster.addresses import parsed, taken
from mgpu_helpers.cluster.form import Config, form, listed, loopback, place, read
from mgpu_helpers.cluster.reach import SILENT, UNKNOWN, elsewhere, reach
from mgpu_helpers.wording import counted


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
    read_in = [read(each) for each in tf_configs or (None,)]
    given = [each for each in read_in if not isinstance(each, list)]
    said = [line for one in read_in for line in (one if isinstance(one, list) else form(one))]
    if said:
        return list(dict.fromkeys(said))
    if len(given) > 1:
        return _compared(given)
    config = given[0]
    return _slurm(config) + _proxy(config) + sum(network(listed(config), place(config)), [])


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


def _compared(configs: list[dict[str, Any]]) -> list[str]:
    """Say where the TF_CONFIGs of several workers do not fit together."""
    said = []
    lists = [listed(config) for config in configs]
    places = [place(config) for config in configs]
    for who in dict.fromkeys(each for each in places if places.count(each) > 1):
        said.append(f"{counted(places.count(who), 'TF_CONFIG')} say that they are {who}.")
    for who, one in zip(places, lists, strict=True):
        if len(one) != len(lists[0]):
            said.append(
                f"{places[0].capitalize()} lists {counted(len(lists[0]), 'address')[:-1]}es, "
                f"{who} lists {len(one)}: give all the same list."
            )
        elif one != lists[0]:
            wrong = next(name for name in one if one[name] != lists[0].get(name))
            has = f"{wrong} at {lists[0][wrong]}" if wrong in lists[0] else f"no {wrong}"
            said.append(
                f"{places[0].capitalize()} has {has}, {who} has it at {one[wrong]}: give all the "
                "same list in the same order."
            )
    missing = [name for name in lists[0] if name not in places]
    if missing and not said:
        said.append(f"There is no TF_CONFIG for {', '.join(missing)}: the others would wait.")
    return said


def _slurm(config: Mapping[str, Any]) -> list[str]:
    """Compare with what Slurm says, where a worker is a task of srun."""
    tasks, nodes = (
        int(number) if (number := os.environ.get(name, "")).isdecimal() else 0
        for name in ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES")
    )
    n = len(listed(config))
    said = []
    if tasks > 1 and tasks != n:
        said.append(f"TF_CONFIG lists {n} addresses, and srun has started {tasks} tasks.")
    if nodes > 1 and n > 1 and all(loopback(parsed(a)[0]) for a in listed(config).values()):
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
