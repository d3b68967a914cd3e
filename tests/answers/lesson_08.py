"""Answers to the exercises of lesson 08: right ones, and wrong ones with their hints."""

CELLS = [
    "def on_each(function, devices, *shards):", "def make_parallel(function, devices",
    "def error_of(w, x, y):", "def squared_error(x, y):",
]

LOOP = """
def distances(points, others):
    found = []
    for i, device in enumerate(plan.devices):
        rows = slice(i * len(points) // len(plan), (i + 1) * len(points) // len(plan))
        with tf.device(device):
            found.append(tf.norm(points[rows] - others[rows], axis=1))
    with tf.device(plan.host):
        return tf.concat(found, axis=0)
"""

COORDINATES = """
def distances(points, others):
    squares = []
    for axis, device in enumerate([plan.devices[0], plan.devices[-1]]):
        with tf.device(device):
            squares.append(tf.square(points[:, axis] - others[:, axis]))
    with tf.device(plan.devices[0]):
        return tf.sqrt(squares[0] + squares[1])
"""

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
        LOOP,
        ("distances = make_parallel(distance, plan.devices)", "def distances(**batches):\n"
         "    return make_parallel(distance, plan.devices)(batches['points'], batches['others'])"),
    ],
    2: [
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
    3: [
        MEAN,
        ("tf.reduce_mean(squared_error(x, y), keepdims=True)",
         "tf.reshape(tf.reduce_sum(squared_error(x, y)), [1])",
         "return tf.reduce_mean(make", "with tf.device(plan.host):\n        return 1 / len(x) * "
         "tf.reduce_sum(make"),
    ],
}

WRONG = {
    1: [
        ("make_parallel(distance, plan.devices)", "distance", "computed nothing"),
        (LOOP.replace("tf.concat(found", "tf.concat(found[::-1]"), "not in the order"),
        (LOOP.replace("found.append(", "found.append(0.0 + ").replace(
            "(device)", "(plan.host)").replace("return ", "apart = ").rstrip()
         + "\n    return make_parallel(lambda each: 1.0 * each, plan.devices)(apart)",
         "cut the two batches"),
        (LOOP.replace("points[rows] - others[rows], axis=1)",
                      "points - others, axis=1)[rows]"), "more than its shard"),
        (COORDINATES, "by their rows"),
        ("tf.square(points - others)", "tf.abs(points - others)", "not the distances of each"),
    ],
    2: [
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
    3: [
        (", keepdims=True", "", "keepdims=True"),
        ("mean_error = lambda x, y: tf.reduce_mean(squared_error(x, y))", "did nothing"),
        ("mean_error = lambda x, y: tf.reduce_sum(squared_error(x, y))", "not the mean"),
        (MEAN.replace("tf.split(x, len(plan)), tf.split(y, len(plan))",
                      "[x] * len(plan), [y] * len(plan)"), "more than its shard"),
        (MEAN.replace("tf.device(plan.host)", "tf.name_scope('nobody')"), "cut the batch on the"),
    ],
}
