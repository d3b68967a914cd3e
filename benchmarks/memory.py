"""What a Monitor costs a training, and what each memory option takes (lesson 05's lab).

python benchmarks/memory.py    writes results/memory.json, or results/memory-gpus.json on a GPU
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import _cards as results
from _rounds import compare
from mgpu_helpers import devices, memory
from mgpu_helpers._formatting import size_text
from mgpu_helpers.lessons import digits, networks

EVERY, STEPS, TARGET = 0.1, 25, 0.02
SCRIPT = Path(__file__).resolve().parent.parent / "notebooks" / "scripts" / "hold_memory.py"


def build(plan: devices.Plan):
    """Return a function that trains for some steps on one device, about half a second's worth."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    network = networks.tensorlight(width=0.25)
    with tf.Graph().as_default() as graph, tf.device(plan.devices[0]):
        x = tf1.placeholder(tf.float32, [None, 28, 28, 1])
        y = tf1.placeholder(tf.int64, [None])
        loss = networks.loss(y, networks.logits(network, networks.classic(network), x))
        step = tf1.train.AdamOptimizer(1e-3).minimize(loss)
        start = tf1.global_variables_initializer()
    config = plan.session_config(devices=1, soft_placement=True)
    session = tf1.Session(graph=graph, config=config)
    session.run(start)
    feed = dict(zip((x, y), digits.load(128), strict=True))

    def train() -> None:
        for _ in range(STEPS):
            session.run(step, feed)

    return train


def main() -> None:
    # Before this process takes a GPU for itself.
    said = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True)
    if said.returncode:
        sys.exit(said.stderr)
    lab = [json.loads(line) for line in said.stdout.splitlines()]
    for record in lab:
        if held := record["driver"] or record["process"]:
            print(f"{record['option']}: at most {size_text(max(held))}")
    plan = devices.setup(1, exact=True)
    train = build(plan)

    def watched() -> None:
        with memory.Monitor(EVERY):
            train()

    cost = [ratio - 1 for ratio in compare(watched, train, warmup=1).ratios]
    ratio = results.Ratio.of("cost of a Monitor", cost, TARGET, at_least=False)
    print(f"{ratio}; it samples every {EVERY} s; {len(cost)} pairs")
    numbers = {"monitor_cost": ratio.value, "target": TARGET, "pairs": len(cost), "lab": lab}
    name = "memory" if plan.mode == "cores" else "memory-gpus"
    results.write(name, plan, numbers, [ratio])


if __name__ == "__main__":
    main()
