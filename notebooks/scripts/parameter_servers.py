"""Count the updates on a parameter server while a worker, or the server, is killed.

docs/parameter_servers.md explains what it prints. One server and two workers are processes of this
machine; this process is the coordinator, which hands the updates out.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--updates", type=int, default=2000, help="how many are asked for")
parser.add_argument("--kill", choices=["worker 1", "ps 0"], default="worker 1")
options = parser.parse_args()
signal.alarm(300)  # seconds; the others end when this process does

# On the cores, and without a proxy between the processes. A call to a task that has died raises.
os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "no_proxy": "127.0.0.1"}
os.environ |= {"GRPC_FAIL_FAST": "use_caller", "TF_CPP_MIN_LOG_LEVEL": "3"}

import tensorflow as tf  # noqa: E402

from mgpu_helpers.cluster.addresses import free_ports  # noqa: E402

server, *workers = (f"127.0.0.1:{port}" for port in free_ports(3))
cluster = {"ps": [server], "worker": workers}
SERVE = """
import json, sys
import tensorflow as tf
cluster, job, index = sys.argv[1:]
tf.distribute.Server(json.loads(cluster), job_name=job, task_index=int(index))
sys.stdin.read()  # until the coordinator has ended
"""


def start(task):
    command = [sys.executable, "-c", SERVE, json.dumps(cluster), *task.split()]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)


tasks = {task: start(task) for task in ("ps 0", "worker 0", "worker 1")}
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    tf.train.ClusterSpec(cluster), rpc_layer="grpc"
)
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():  # both are on the server
    counter, long = tf.Variable(0), tf.Variable(False)


@tf.function
def update():
    counter.assign_add(1, use_locking=True)
    while long:  # an update that is still at work after it has added
        pass


def ask(n):
    for _ in range(n):
        coordinator.schedule(update)


def stop_in_the_middle():
    """Ask for two updates that go on, and wait until each worker has one."""
    long.assign(True)
    before = counter.numpy()
    ask(2)
    while counter.numpy() < before + 2:
        time.sleep(0.05)


def finish(asked):
    long.assign(False)
    coordinator.join()
    print(f"asked for {asked} updates, {counter.numpy()} were applied")


ask(options.updates - 4)
finish(options.updates - 4)
stop_in_the_middle()
tasks[options.kill].kill()
tasks[options.kill].wait()
print(options.kill, "was killed in the middle of an update")
if options.kill != "ps 0":
    tasks[options.kill] = start(options.kill)
try:
    finish(options.updates - 2)
    stop_in_the_middle()  # so each worker has an update again
except tf.errors.UnavailableError as error:
    print(f"{type(error).__name__}: the training ends")
    raise SystemExit(1) from None
print(options.kill, "is back")
finish(options.updates)
