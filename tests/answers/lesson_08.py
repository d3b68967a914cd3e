"""Answers to the exercises of lesson 08: right ones, and wrong ones with their hints."""

CELLS = [
    "def on_each(function, devices, *shards):", "def make_parallel(function, devices",
    "def error_of(w, x, y):", "def squared_error(x, y):",
]

MEAN = """
def mean_error(x, y):
    means = []
    with tf.device(plan.host):
        shards = tf.split(x, len(plan)), tf.split(y, len(plan))
    for device, *shard in zip(plan.devices, *shards):
        with tf.device(device):
            means.append(tf.reduce_mean(squared_error(*shard)))
    with tf.device(plan.devices[0]):
        return tf.add_n(means) / len(plan)
"""

RIGHT = {
    1: [
        ("    def", "    @tf.function\n    def"),
        """
def make_parallel_uneven(function, devices):
    def parallel(**batches):
        shards = zip(*[np.array_split(batch, len(devices)) for batch in batches.values()])
        outputs = []
        for device, shard in zip(devices, shards):
            with tf.device(device):
                outputs.append(function(*shard))
        return np.concatenate(outputs)

    return parallel
""",
    ],
    2: [
        MEAN,
        ("tf.reduce_mean(squared_error(x, y), keepdims=True)",
         "tf.reshape(tf.reduce_sum(squared_error(x, y)), [1])",
         "return tf.reduce_mean(make", "with tf.device(plan.host):\n        return 1 / len(x) * "
         "tf.reduce_sum(make"),
    ],
}

WRONG = {
    1: [
        ("make_parallel_uneven = lambda f, d: make_parallel(f, d)", "sizes that add up to 11"),
        ("[least + 1] * more + [least] * (len(devices) - more)",
         "[least + more] + [least] * (len(devices) - 1)", "differ by one at most"),
        ("on_each(function, devices", "on_each(function, [plan.host] * len(devices)",
         "is tf.device in the loop?"),
        ("*shards)", "*shards)[::-1]", "not those of the whole batch, in order"),
        ("in batches]", "in batches[:2]]", "of 3 batches it got 2"),
        ("tf.device(plan.host)", "tf.name_scope('a')", "/CPU:1 cut the batch"),
        ("            return", "        return", "/CPU:1 joined the batch"),
    ],
    2: [
        (", keepdims=True", "", "keepdims=True"),
        ("mean_error = lambda x, y: tf.reduce_mean(squared_error(x, y))", "did nothing"),
        ("mean_error = lambda x, y: tf.reduce_sum(squared_error(x, y))", "not the mean"),
        (MEAN.replace("tf.split(x, len(plan)), tf.split(y, len(plan))",
                      "[x] * len(plan), [y] * len(plan)"), "more than its shard"),
        (MEAN.replace("tf.device(plan.host)", "tf.name_scope('nobody')"), "cut the batch on the"),
        (MEAN.replace("tf.split(x, len(plan)),", "tf.split(x, len(plan))[::-1],"), "not the mean"),
        ("mean_error = lambda *xy: tf.reduce_mean(make_parallel(squared_error, plan.devices)(*xy))",
         "sent more than one number: take the mean of a shard"),
        (MEAN.replace("tf.split(x, len(plan)), tf.split(y, len(plan))",
                      "[[each[:len(x) // len(plan)], each[-(len(x) // len(plan)):]] "
                      "for each in (x, y)]").replace("tf.device(plan.host)", "tf.name_scope('a')"),
         "cut the batch on the host"),
        (MEAN.replace("tf.split", "np.split"), "tf.split cuts a tensor"),
        (MEAN.replace("devices[0]):\n        return tf.add_n(means) / len(plan)", "host):\n        "
                      "return 0 * tf.add_n(means) + tf.reduce_mean(squared_error(x, y))"),
         "more than its shard"),
    ],
}
