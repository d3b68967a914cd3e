"""What crosses between workers, how long it takes over a slow link, and what the launcher costs.

python benchmarks/link.py    writes results/link.json (lesson 21)

A slow link needs no root where an unprivileged user may have namespaces. Each worker then has a
network of its own; all of them end with the process that made them, and leave nothing behind.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _cards as results
from mgpu_helpers import cluster, devices, scaling

HERE = Path(__file__).resolve().parent
WORKER = HERE / "_link_worker.py"
P, RATES, TCP = 5_000_000, (0, 200, 50), 0.956  # bytes; Mbit/s; of a link's rate, what TCP carries
LIMIT = 200.0  # seconds for each cluster

ENTER = """\
echo there; read go
ip link set lo up && ip address add "$1" dev e0 && ip link set e0 up
shift; exec "$@"
"""
STARTS = """\
import os, signal, sys, time
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
strategy.reduce("sum", strategy.run(lambda: tf.constant(1.0)), axis=None).numpy()
attempt, index = os.environ["MGPU_ATTEMPT"], strategy.cluster_resolver.task_id
open(f"{sys.argv[1]}/{attempt}_{index}", "w").write(str(time.monotonic()))
if attempt == "0" and index == 1:
    time.sleep(0.5)
    open(f"{sys.argv[1]}/killed", "w").write(str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)
if attempt == "0":
    strategy.reduce("sum", strategy.run(lambda: tf.constant(1.0)), axis=None)
"""


def spaces() -> tuple[str | None, str]:
    """Say how a network of its own can be made here, or None; and what the card says of it."""
    missing = [tool for tool in ("unshare", "ip", "tc") if not shutil.which(tool)]
    if missing:
        return None, f"no slow link: this machine has no {' and no '.join(missing)}"
    for how in ("-Urn", "-n"):  # as any user; as root, where a user may not
        tried = subprocess.run(
            ["unshare", how, "sh", "-c", "ip link add v0 type veth peer name e0 && "
             "tc qdisc add dev e0 root tbf rate 50mbit burst 64kb latency 200ms"],
            capture_output=True, text=True, timeout=20,
        )  # fmt: skip
        if not tried.returncode:
            return f"unshare {how}", f"networks by unshare {how}, bridge, tbf"
    said = tried.stderr.strip() or f"exit status {tried.returncode}"
    return None, f"no slow link: nobody may make a network of their own here ({said})"


def inside(n: int, script: str) -> None:
    """Join n networks by a bridge, and run a worker in each. This process has a network to itself.

    The addresses exist in these networks only. The first worker that fails ends all.
    """
    addresses = [f"10.77.0.{i + 1}" for i in range(n)]
    hosts = [f"{address}:20000" for address in addresses]
    running: list[subprocess.Popen] = []

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, timeout=20)

    try:
        ip("link", "add", "bridge", "type", "bridge")
        ip("link", "set", "bridge", "up")
        for i, address in enumerate(addresses):
            task = {"type": "worker", "index": i}
            config = json.dumps({"cluster": {"worker": hosts}, "task": task})
            settings = {"TF_CONFIG": config, "CUDA_VISIBLE_DEVICES": "-1",
                        "TF_CPP_MIN_LOG_LEVEL": "3", "no_proxy": ",".join(addresses)}  # fmt: skip
            worker = [sys.executable, script, *map(str, RATES)]
            child = subprocess.Popen(
                ["unshare", "-n", "sh", "-c", ENTER, "sh", f"{address}/24", *worker], text=True,
                env=os.environ | settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            running.append(child)
            child.stdout.readline()  # it has its network
            ip("link", "add", f"v{i}", "type", "veth", "peer", "name", "e0")
            ip("link", "set", "e0", "netns", str(child.pid))
            ip("link", "set", f"v{i}", "master", "bridge", "up")
        for child in running:
            child.stdin.write("go\n")
            child.stdin.flush()
        end = time.monotonic() + LIMIT
        while None in (codes := [child.poll() for child in running]) and not any(codes):
            if time.monotonic() > end:
                raise RuntimeError(f"The workers took longer than {LIMIT:.0f} s.")
            time.sleep(0.05)
        if any(codes):
            raise RuntimeError(f"The workers ended with {codes}; None was still at work.")
        for child in running:
            print(child.stdout.read().splitlines()[-1])
    finally:
        for child in running:
            child.kill()
            child.wait()


def slow(n: int, how: str, script: Path = WORKER) -> list[dict]:
    """Run n workers, each in a network of its own, and return what each of them found."""
    inner = [sys.executable, __file__, str(n), script]
    command = [*how.split(), "--pid", "--fork", "--kill-child", *inner]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as ran:
        try:
            said, error = ran.communicate(timeout=LIMIT + 30)
        except BaseException:
            ran.kill()
            ran.communicate()  # until the last of them has ended, and with it its end of the pipe
            raise
    if ran.returncode:
        raise RuntimeError(f"{n} workers in networks of their own failed: {error[-500:]}")
    return [json.loads(line) for line in said.splitlines()]


def compared(workers: list[dict]) -> list[dict]:
    """Set what the workers measured on slow links beside what the ring predicts."""

    def slowest(rate: int, what: str) -> float:
        return max(worker[str(rate)][what] for worker in workers)

    n, rows = len(workers), []
    gradients, free = scaling.Workload("gradients", P // 4), scaling.Cost(0.0, 0.0)
    for rate in RATES[1:]:
        speed = rate * 1e6 / 8
        link = scaling.Link(f"{rate} Mbit/s", speed, speed, speed, 0.0, "tbf")
        ring = scaling.ring(gradients, free, n, 1, link).total
        average = ring / TCP + slowest(0, "average")
        rows.append({
            "workers": n, "megabits": rate, "unlimited": round(slowest(0, "average"), 4),
            "seconds": round(slowest(rate, "average"), 4), "ring": round(ring, 4),
            "predicted": round(average, 4), "step": round(slowest(rate, "step"), 4),
            "step_predicted": round(slowest(0, "compute") + average, 4),
        })  # fmt: skip
    return rows


def launcher() -> dict[str, float]:
    """Time a start and a restart, and the launcher itself while its workers sleep; in seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "starts.py").write_text(STARTS)
        (folder / "sleeps.py").write_text("import time; time.sleep(4)")
        began = time.monotonic()
        report = cluster.run(folder / "starts.py", [name], workers=2, restarts=1, logs=folder / "l",
                             time_limit=LIMIT, progress=False)  # fmt: skip
        if not report.ok:
            raise RuntimeError(f"the restart failed: {report}")

        def at(*files: str) -> float:
            return max(float((folder / file).read_text()) for file in files)

        before = resource.getrusage(resource.RUSAGE_SELF)
        waited = cluster.run(folder / "sleeps.py", workers=2, logs=folder / "s", progress=False)
        after = resource.getrusage(resource.RUSAGE_SELF)
        busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {
            "start_to_first_step": round(at("0_0", "0_1") - began, 2),
            "kill_to_first_new_step": round(at("1_0", "1_1") - at("killed"), 2),
            "share_of_a_core_while_it_waits": round(busy / waited.seconds, 4),
        }


def main() -> None:
    plan = devices.setup(2, exact=True)
    ratios, numbers = [], {"gradient_bytes": P, "launcher": launcher()}
    with tempfile.TemporaryDirectory() as logs:
        for n in (2, 3):
            report = cluster.run(WORKER, workers=n, logs=f"{logs}/{n}", time_limit=LIMIT,
                                 progress=False)  # fmt: skip
            if not report.ok:
                raise RuntimeError(f"{n} workers failed: {report}")
            ring = 2 * (n - 1) * P
            for name, what in (("float32", "bytes"), ("float16", "half")):
                counted = min(job.result[what] for job in report)
                numbers[f"{n} workers, {name}, bytes"] = counted
                off = abs(counted / ring * (2 if what == "half" else 1) - 1)
                name = f"{n} workers, {name}, bytes off 2(n - 1)P"
                ratios.append(results.Ratio(name, round(off, 4), 0.02, at_least=False))
    how, numbers["made"] = spaces()
    numbers["links"] = [row for n in (2, 3) for row in compared(slow(n, how))] if how else []
    for row in numbers["links"]:
        name = f"{row['workers']} workers, {row['megabits']} Mbit/s"
        off = row["seconds"] / row["predicted"]
        ratios.append(results.Ratio(f"{name}, all-reduce over predicted", round(off, 3), 1.15,
                                    at_least=False))  # fmt: skip
        off = abs(row["step"] / row["step_predicted"] - 1)
        ratios.append(results.Ratio(f"{name}, step, error", round(off, 3), 0.15, at_least=False))
        print(row)
    if how:
        least = min(row["seconds"] / row["predicted"] for row in numbers["links"])
        name = "slow links, all-reduce over predicted, the least"
        ratios.append(results.Ratio(name, round(least, 3), 0.9))
    print(numbers["launcher"], *ratios, sep="\n")
    results.write("link", plan, numbers, ratios)


if __name__ == "__main__":
    inside(int(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 1 else main()
