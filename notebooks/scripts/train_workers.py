"""Train a small Keras network as one worker of several; the chief saves. Lesson 17 starts it.

Data and dropout are functions of the step, so that any number of workers sees the same batches, and
a restart from a checkpoint goes on as if nothing had happened.
"""

import argparse
import hashlib
import json
import os
import signal

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--save-every", type=int, default=5, help="steps from a checkpoint to the next")
parser.add_argument("--batch", type=int, default=48, help="examples, over all workers")
parser.add_argument("--checkpoints", default="checkpoints", help="a folder that all workers see")
parser.add_argument("--kill-at", type=int, help="the step at which worker 1 kills itself, once")
parser.add_argument("--term-at", type=int, help="in attempt 1, the step of a SIGTERM to worker 1")
options = parser.parse_args()

import numpy as np  # noqa: E402  --help need not wait for TensorFlow
import tensorflow as tf  # noqa: E402

from mgpu_helpers.lessons import digits  # noqa: E402

index = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]
alone = "TF_CONFIG" not in os.environ
strategy = tf.distribute.get_strategy() if alone else tf.distribute.MultiWorkerMirroredStrategy()
images, labels = digits.load()


def batch(step, replica):
    """Give a replica its rows of the step's batch: images, labels, and the mask of the dropout."""
    chance = np.random.Generator(np.random.PCG64([step]))
    rows = chance.choice(len(images), options.batch, replace=False)
    mask = (chance.random((options.batch, 32)) < 0.8).astype("float32") / 0.8
    mine = slice(replica, None, strategy.num_replicas_in_sync)
    return images[rows][mine], labels[rows][mine], mask[mine]


first, second = (tf.keras.initializers.GlorotUniform(seed) for seed in (0, 1))
with strategy.scope():  # the variables start from the chief's
    image, mask = tf.keras.Input([28, 28, 1]), tf.keras.Input([32])
    flat = tf.keras.layers.Flatten()(image)
    hidden = tf.keras.layers.Dense(32, "relu", kernel_initializer=first)(flat)
    dropped = tf.keras.layers.Multiply()([hidden, mask])
    outputs = tf.keras.layers.Dense(10, kernel_initializer=second)(dropped)
    model = tf.keras.Model([image, mask], outputs)
    optimizer = tf.keras.optimizers.Adam(0.001)
    optimizer.build(model.trainable_variables)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


@tf.function
def train_step(batch):
    def on_replica(images, labels, mask):
        with tf.GradientTape() as tape:
            losses = loss_of(labels, model([images, mask]))
            loss = tf.reduce_sum(losses) / options.batch  # of all workers' examples
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)  # adds up the gradients of all
        return loss

    return strategy.reduce("sum", strategy.run(on_replica, batch), axis=None)


checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
manager = tf.train.CheckpointManager(checkpoint, options.checkpoints, 3, step_counter=None)
preemption = None
if options.term_at is not None:  # each worker saves, so each of them has a folder of its own
    own = f"{options.checkpoints}/worker_{index}" if index else options.checkpoints
    own = tf.train.CheckpointManager(checkpoint, own, 3, step_counter=None)
    handler = tf.distribute.experimental.PreemptionCheckpointHandler
    preemption = handler(strategy.cluster_resolver, own)
begin = 0
for path in reversed(manager.checkpoints):
    try:
        checkpoint.restore(path).assert_existing_objects_matched()
        begin = int(path.rpartition("-")[2])
        break
    except (tf.errors.OpError, AssertionError) as error:
        print(f"{path} cannot be read, so the one before is: {str(error)[:200]}")
print(f"attempt {os.environ.get('MGPU_ATTEMPT', 0)} begins after {begin} steps", flush=True)

loss = None
for step in range(begin, options.steps):
    if step == options.kill_at and index == 1 and os.environ.get("MGPU_ATTEMPT") == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    if step == options.term_at and index == 1 and os.environ.get("MGPU_ATTEMPT") == "1":
        os.kill(os.getpid(), signal.SIGTERM)
    rows = strategy.experimental_distribute_values_from_function(
        lambda context, step=step: batch(step, context.replica_id_in_sync_group)
    )
    loss = train_step(rows)
    if (step + 1) % options.save_every == 0 and index == 0:  # the others would write over it
        manager.save(checkpoint_number=step + 1)
    if preemption:
        preemption.save_checkpoint_if_preempted(checkpoint_number=step + 1)

values = [variable.numpy() for variable in (*model.variables, *optimizer.variables)]
digest = hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()
print(json.dumps({"step": options.steps, "loss": float(loss), "state": digest}))
