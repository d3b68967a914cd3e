"""Two processes that stand for two machines, and run pieces of code that a lesson sends them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mgpu_helpers.cluster.addresses import free_ports

PROGRAM = """
import gc, json, signal, sys
gc.disable()  # to free an old iterator of tf.data can take a minute, and the others would wait
import tensorflow as tf
for line in sys.stdin:
    signal.alarm(300)
    try:
        exec(json.loads(line))
    except Exception as error:
        print(type(error).__name__ + ":", str(error).splitlines()[0])
    signal.alarm(0)
    print("---", flush=True)
"""


def tf_configs(addresses: Sequence[str]) -> list[str]:
    """Give the TF_CONFIG of each worker of a cluster that has these addresses.

    >>> print(tf_configs(["a:20000"])[0])
    {"cluster": {"worker": ["a:20000"]}, "task": {"type": "worker", "index": 0}}
    """
    cluster = {"worker": list(addresses)}
    return [
        json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        for index in range(len(addresses))
    ]


def crossed(add: Callable[[Any], Any], x: Any) -> int:
    """Count the bytes that all workers of this machine send in an all-reduce of x.

    `add` is the all-reduce. The tiny ones before and after x make the workers wait until both have
    read the operating system's counter. Other programs may send meanwhile, so the least of six
    counts is taken.
    """
    import psutil  # type: ignore[import-untyped]  # it comes without types
    import tensorflow as tf

    def sent() -> int:
        counters = psutil.net_io_counters(pernic=True)
        return sum(each.bytes_sent for name, each in counters.items() if name in ("lo", "lo0"))

    counts, tiny = [], tf.constant([1.0])
    for _ in range(7):
        before = sent()
        for each in (tiny, x, tiny):
            add(each).numpy()
        counts.append(sent() - before)
    return min(counts[1:])


class Pair:
    """Two workers of one core each, also where there are GPUs: NCCL refuses two on one GPU."""

    def __init__(self) -> None:
        self.hosts = [f"127.0.0.1:{port}" for port in free_ports(2)]
        self._folder = Path(tempfile.mkdtemp())
        self._asked = [0, 0]
        self._workers = []
        for index, config in enumerate(tf_configs(self.hosts)):
            settings = {"TF_CONFIG": config, "CUDA_VISIBLE_DEVICES": "-1", "MGPU_MODE": "cores",
                        "TF_NUM_INTRAOP_THREADS": "1"}  # fmt: skip
            settings |= {"no_proxy": "127.0.0.1"}  # gRPC would ask a proxy for the other worker
            with open(self._folder / f"{index}.log", "w") as log:
                self._workers.append(subprocess.Popen(
                    [sys.executable, "-c", PROGRAM], env=os.environ | settings, text=True,
                    bufsize=1, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.DEVNULL,
                ))  # fmt: skip

    def tell(self, index: int, code: str, seconds: float = 0) -> str | None:
        """Send a piece of code to a worker; return what it prints, None if it needs longer."""
        pipe = self._workers[index].stdin
        assert pipe
        self._asked[index] += 1
        pipe.write(json.dumps(code) + "\n")
        return self._said(index, seconds)

    def _said(self, index: int, seconds: float = 90) -> str | None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            answers = (self._folder / f"{index}.log").read_text().split("---\n")
            if len(answers) > self._asked[index]:
                return answers[self._asked[index] - 1].strip()
            time.sleep(0.02)
        return None

    def ask(self, code: str) -> list[str]:
        """Send a piece to both and return what each prints."""
        for index in (0, 1):
            self.tell(index, code)
        return [self._said(index) or "" for index in (0, 1)]

    def both(self, code: str) -> None:
        """Send a piece to both and print what they print."""
        for index, answer in enumerate(self.ask(code)):
            if answer:
                print(f"worker {index}: {answer}")

    def close(self) -> None:
        """End both."""
        for worker in self._workers:
            worker.kill()
            worker.communicate()
