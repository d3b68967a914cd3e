"""Two processes that stand for two machines, and run pieces of code that a lesson sends them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

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


def to_paste(path: str | os.PathLike[str]) -> str:
    """Give the lines of train_workers.py that matter: the import, the model in its scope, `fit`."""
    script = Path(path).read_text(encoding="utf-8")
    begin = "from mgpu_helpers import"
    imported = next(line for line in script.splitlines() if line.startswith(begin))
    model = script[script.index("keras.utils.set_random_seed") : script.index("callbacks =")]
    fit = script[script.index("history = ") : script.index("values =")]
    return f"{imported.partition('  #')[0]}\n…\n{model.rstrip()}\n…\n{fit.rstrip()}"


def run_alone(path: str | os.PathLike[str], folder: Path, device: str) -> dict[str, Any]:
    """Run train_workers.py in this process without the line marked "added"; return its names."""
    import tensorflow as tf

    script = Path(path).read_text(encoding="utf-8")
    (added,) = [line for line in script.splitlines() if line.endswith("# added")]
    names: dict[str, Any] = {"__name__": "__main__"}
    words = [str(path), "--folder", str(folder)]
    with tf.device(device), mock.patch("sys.argv", words), contextlib.redirect_stdout(None):
        exec(script.replace(added, "if True:"), names)
    return names


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

    def ask(self, code: str, workers: Sequence[int] = (0, 1), seconds: float = 90) -> list[str]:
        """Send a piece of code to both workers, or to those named; return what each prints."""
        for index in workers:
            pipe = self._workers[index].stdin
            assert pipe
            self._asked[index] += 1
            pipe.write(json.dumps(code) + "\n")
        return [self._said(index, seconds) for index in workers]

    def show(self, code: str, workers: Sequence[int] = (0, 1), seconds: float = 90) -> None:
        """Send a piece of code to both workers, or to those named, and print what they print."""
        for index, answer in zip(workers, self.ask(code, workers, seconds), strict=True):
            if answer:
                print(f"worker {index}: {answer}")

    def _said(self, index: int, seconds: float) -> str:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            answers = (self._folder / f"{index}.log").read_text().split("---\n")
            if len(answers) > self._asked[index]:
                return answers[self._asked[index] - 1].strip()
            time.sleep(0.02)
        return f"no answer after {seconds:g} s"

    def close(self) -> None:
        """End both."""
        for worker in self._workers:
            worker.kill()
            worker.communicate()
