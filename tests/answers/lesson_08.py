"""Answers to the exercises of lesson 08: right ones, and wrong ones with their hints."""

RIGHT = {
    1: [
        "replica_loss = lambda losses, n: tf.nn.compute_average_loss(losses, global_batch_size=n)",
        "replica_loss = lambda losses, n: sum(losses) / n",
    ],
    2: [
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

EACH = "np.concatenate(sum(map(strategy.experimental_local_results, losses), ()))"

WRONG = {
    1: [
        ("tf.reduce_sum(losses) / global_batch", "tf.reduce_mean(losses)",
         "the means of the shards"),
        (" / global_batch", "", "nothing is divided"),
        ("tf.reduce_sum(losses)", "tf.stop_gradient(tf.reduce_sum(losses))", "no gradient"),
        ("tf.reduce_sum(losses)", "tf.reduce_sum(tf.stop_gradient(losses) + 0 * losses)",
         "its gradient is not"),
        ("tf.reduce_sum(losses)", "tf.reduce_mean(losses) * len(losses)", "should give 0"),
        ("tf.reduce_sum(losses)", "tf.distribute.get_replica_context().all_reduce("
         "'SUM', tf.reduce_sum(losses))", "leave the sum to the strategy"),
    ],
    2: [
        (EACH, "[part.numpy().mean() for each in losses "
         "for part in strategy.experimental_local_results(each)]", "is not a number"),
        ("np.mean", "np.sum", "divide by the number of examples"),
        (EACH, "[np.concatenate(strategy.experimental_local_results(each)).mean() "
         "for each in losses]", "counts as much as the others"),
        ("(data)", "(data.unbatch().batch(2 * len(plan), drop_remainder=True))", "left out"),
        ("strategy.run(losses_of, args=(batch,))", "losses_of(batch)", "in batches]", "in data]",
         EACH, "np.concatenate(losses)", "strategy.run"),
        ("strategy.experimental_distribute_dataset(data)", "data",
         EACH, "np.concatenate([strategy.experimental_local_results(each)[0] for each in losses])",
         "a replica computed"),
    ],
    3: [
        ("leaves_empty = lambda examples, batch, replicas: examples % batch % replicas > 0",
         "should be False"),
        ("{min(batch, examples), examples % batch}", "{examples % batch}", "first"),
        (">= size", "> size", "should be True"),
        ("leaves_empty = lambda examples, batch, replicas: 0 in replica_sizes("
         "examples % batch or batch, replicas)", "first"),
        ("leaves_empty = lambda examples, batch, replicas: "
         "min(batch, examples, examples % batch or batch) < replicas", "should be True"),
    ],
}
