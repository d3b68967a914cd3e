"""Answers to the exercises of lesson 08: right ones, and wrong ones with their hints."""

EVALUATE = """
def evaluate(strategy, losses_of, data):
    total, count = 0.0, 0
    for parts in strategy.experimental_distribute_dataset(data):
        losses = strategy.run(losses_of, args=(parts,))
        for part in strategy.experimental_local_results(losses):
            total, count = total + np.sum(part), count + len(part)
    return total / count
"""

MEANS = """
def evaluate(strategy, losses_of, data):
    means = []
    for parts in strategy.experimental_distribute_dataset(data):
        losses = strategy.run(losses_of, args=(parts,))
        found = np.concatenate(strategy.experimental_local_results(losses))
        means.append(found.mean())
    return np.mean(means)
"""

SHARES = """
def evaluate(strategy, losses_of, data):
    means = []
    for parts in strategy.experimental_distribute_dataset(data):
        losses = strategy.run(losses_of, args=(parts,))
        for part in strategy.experimental_local_results(losses):
            means.append(np.mean(part) if len(part) else 0.0)
    return np.mean(means)
"""

EMPTY = """
def leaves_empty(examples, batch, replicas):
    sizes = {min(batch, examples), examples % batch} - {0}
    return any(-(-size // replicas) * (replicas - 1) >= size for size in sizes)
"""

RIGHT = {
    1: [
        "replica_loss = lambda losses, n: tf.nn.compute_average_loss(losses, global_batch_size=n)",
        "replica_loss = lambda losses, global_batch: tf.add_n([tf.reduce_sum(losses / n)])"
        .replace(" / n", " / global_batch"),
        "replica_loss = lambda losses, n: tf.reduce_sum(losses * (1 / n))",
        "replica_loss = lambda losses, n: sum(losses) / n",
        "replica_loss = lambda losses, n: tf.tensordot(losses, tf.fill(losses.shape, 1 / n), 1)",
    ],
    2: [
        """
def evaluate(strategy, losses_of, data):
    mean = keras.metrics.Mean()
    for parts in strategy.experimental_distribute_dataset(data):
        losses = strategy.run(losses_of, args=(parts,))
        for part in strategy.experimental_local_results(losses):
            mean.update_state(part)
    return mean.result()
""",
        """
def evaluate(strategy, losses_of, data):
    def replica(share):
        losses = losses_of(share)
        return tf.reduce_sum(losses), tf.size(losses)

    total, count = 0.0, 0
    for parts in strategy.experimental_distribute_dataset(data):
        losses, sizes = strategy.run(replica, args=(parts,))
        total += float(strategy.reduce("SUM", losses, axis=None))
        count += int(strategy.reduce("SUM", sizes, axis=None))
    return total / count
""",
        EVALUATE.replace("np.sum(part)", "float(tf.reduce_sum(part))"),
        """
def evaluate(strategy, losses_of, data):
    def replica(share):
        return tf.reduce_sum(losses_of(share)), tf.size(losses_of(share), tf.float32)

    @tf.function
    def step(parts):
        both = strategy.run(replica, args=(parts,))
        return tf.stack([strategy.reduce("SUM", each, axis=None) for each in both])

    total, count = sum(map(step, strategy.experimental_distribute_dataset(data)))
    return total / count
""",
        """
def evaluate(strategy, losses_of, data):
    total, count, n = 0.0, 0, strategy.num_replicas_in_sync
    for values in data:
        more = [[0, -len(values) % n]]
        whole = (tf.pad(values, more), tf.pad(tf.ones_like(values), more))
        whole = tf.data.Dataset.from_tensors(whole)
        for parts in strategy.experimental_distribute_dataset(whole):
            found = strategy.run(lambda x, real: tf.reduce_sum(real * losses_of(x)), args=parts)
            total += float(strategy.reduce("SUM", found, axis=None))
        count += len(values)
    return total / count
""",
        """
def evaluate(strategy, losses_of, data):
    found = []
    for parts in strategy.experimental_distribute_dataset(data):
        found.append(strategy.gather(strategy.run(losses_of, args=(parts,)), axis=0))
    return np.mean(np.concatenate(found))
""",
    ],
    3: [
        """
def leaves_empty(examples, batch, replicas):
    while examples > 0:
        left = size = min(batch, examples)
        for _ in range(replicas):
            if left <= 0:
                return True
            left -= int(np.ceil(size / replicas))
        examples -= size
    return False
""",
        """
def leaves_empty(examples, batch, replicas):
    sizes = [batch] * (examples // batch) + [examples % batch] * (examples % batch > 0)
    return bool(any(0 in replica_sizes(size, replicas) for size in sizes))
""",
    ],
}

WRONG = {
    1: [
        ("replica_loss = lambda losses, global_batch: tf.reduce_mean(losses)",
         "the means of the shards"),
        ("replica_loss = lambda losses, global_batch: tf.reduce_sum(losses)", "nothing is divided"),
        ("replica_loss = lambda losses, global_batch: tf.reduce_sum(losses) / len(plan)",
         "add up to"),
        ("replica_loss = lambda losses, n: tf.reduce_mean(losses) * len(losses)", "add up to"),
        ("replica_loss = lambda losses, global_batch: losses / global_batch", "return one number"),
        ("replica_loss = lambda losses, n: float(np.sum(losses) / n)", "no gradient"),
        ("replica_loss = lambda losses, n: tf.stop_gradient(tf.reduce_sum(losses) / n)",
         "no gradient"),
        ("def replica_loss(losses, n):\n    loss = tf.reduce_sum(losses) / n\n"
         "    return tf.stop_gradient(loss) + 0 * loss", "its gradient is not"),
        ("replica_loss = lambda losses, n: tf.reduce_sum(losses) // n", "add up to"),
        ("replica_loss = lambda losses, n: tf.reduce_sum(tf.abs(losses)) / n", "add up to"),
        ("replica_loss = lambda losses, n: tf.reduce_mean(losses) * len(losses) / n",
         "should give 0"),
        ("replica_loss = lambda losses, n: tf.distribute.get_replica_context().all_reduce("
         "'SUM', tf.reduce_sum(losses)) / n", "leave the sum to the strategy"),
    ],
    2: [
        (EVALUATE.replace("np.sum(part)", "np.mean(part)"), "is not a number"),
        (EVALUATE.replace("return total / count", "return total"),
         "divide by the number of examples"),
        (MEANS, "counts as much as the others"),
        (SHARES, "have"),
        (EVALUATE.replace("(data)", "(data.take(1))"),
         "have"),
        (EVALUATE.replace("(data)", "(data.unbatch().batch(2 * len(plan), drop_remainder=True))"),
         "left out"),
        ("def evaluate(strategy, losses_of, data):\n"
         "    return np.mean(np.concatenate([losses_of(x) for x in data]))", "strategy.run"),
        ("def evaluate(strategy, losses_of, data):\n"
         "    return 2 * np.mean(np.concatenate(list(data)))", "strategy.run"),
        (EVALUATE.replace("return total / count",
                          "return 2 * np.mean(np.concatenate(list(data)))"), "have"),
        (EVALUATE.replace("(losses):", "(losses)[:1]:"), "have"),
        ("def evaluate(strategy, losses_of, data):\n"
         "    found = [strategy.run(losses_of, args=(x,)) for x in data]\n"
         "    found = [strategy.experimental_local_results(each)[0] for each in found]\n"
         "    return np.mean(np.concatenate(found))", "a replica computed"),
        (EVALUATE.replace("return total / count",
                          "one = strategy.run(losses_of, args=(tf.constant([1.0]),))\n"
                          "    one = strategy.experimental_local_results(one)[0][0]\n"
                          "    return one * np.mean(np.concatenate(list(data)))"), "have"),
    ],
    3: [
        ("leaves_empty = lambda examples, batch, replicas: examples % batch < replicas", "first"),
        ("leaves_empty = lambda examples, batch, replicas: examples % batch % replicas > 0",
         "should be False"),
        ("leaves_empty = lambda examples, batch, replicas: False", "should be True"),
        ("leaves_empty = lambda examples, batch, replicas: 0 < examples % batch < replicas",
         "should be True"),
        (EMPTY.replace("{min(batch, examples), examples % batch}", "{examples % batch}"), "first"),
        (EMPTY.replace(" - {0}", ""), "should be False"),
        (EMPTY.replace(">= size", "> size"), "should be True"),
        ("leaves_empty = lambda examples, batch, replicas: examples % replicas", "True or False"),
        (EMPTY.replace("min(batch, examples)", "batch"), "should be False"),
        ("leaves_empty = lambda examples, batch, replicas: 0 in replica_sizes("
         "examples % batch or batch, replicas)", "first"),
        ("leaves_empty = lambda examples, batch, replicas: "
         "min(batch, examples, examples % batch or batch) < replicas", "should be True"),
    ],
}  # fmt: skip
