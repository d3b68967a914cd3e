"""Answers to the exercises of lesson 06: right ones, and wrong ones with their hints."""

CELLS = [
    "def on_each(function, devices, *shards):", "def make_parallel(function, devices",
    "def error_of(w, x, y):", "def squared_error(x, y):",
]  # fmt: skip

DISTANCE = """
def distance(points, others):
    return tf.sqrt(tf.reduce_sum(tf.square(points - others), axis=1))

"""

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

UNEVEN = """
def make_parallel_uneven(function, devices):
    def parallel(*batches):
        sizes = SIZES
        outputs = []
        with tf.device(plan.host):
            shards = [tf.split(batch, sizes) for batch in batches]
            for device, *shard in zip(devices, *shards):
                with tf.device(device):
                    outputs.append(function(*shard))
            return tf.concat(outputs, axis=0)

    return parallel
"""

N = "len(batches[0]), len(devices)"
FIRST = f"[len(x) for x in np.array_split(np.arange({N.partition(',')[0]}), len(devices))]"
LAST = f"(lambda b, n: [b // n] * (n - 1) + [b - b // n * (n - 1)])({N})"
ONE = f"(lambda b, n: [b // n + b % n] + [b // n] * (n - 1))({N})"
LATER = f"(lambda b, n: [(b + i) // n for i in range(n)])({N})"
CEILING = f"(lambda b, n: [min(-(-b // n), max(0, b - i * -(-b // n))) for i in range(n)])({N})"

ARRAYS = """
def make_parallel_uneven(function, devices):
    def parallel(**batches):
        shards = zip(*[np.array_split(batch, len(devices)) for batch in batches.values()])
        outputs = []
        for device, shard in zip(devices, shards):
            with tf.device(device):
                outputs.append(function(*shard))
        return np.concatenate(outputs)

    return parallel
"""

MEAN = """
def mean_error(x, y):
    means = []
    with tf.device(plan.host):
        shards = tf.split(x, len(plan)), tf.split(y, len(plan))
    for device, *shard in zip(plan.devices, *shards):
        with tf.device(device):
            means.append(tf.reduce_mean(squared_error(*shard)))
    with tf.device(plan.host):
        return tf.add_n(means) / len(plan)
"""

ON_FIRST = "tf.device(plan.devices[0]):\n        return".join(
    MEAN.rsplit("tf.device(plan.host):\n        return", 1)
)

SUMS = """
def mean_error(x, y):
    def total(x, y):
        return tf.reshape(tf.reduce_sum(squared_error(x, y)), [1])
    with tf.device(plan.host):
        return tf.reduce_sum(make_parallel(total, plan.devices)(x, y)) / len(x)
"""

SCALAR = """
def mean_error(x, y):
    means = make_parallel(lambda x, y: tf.reduce_mean(squared_error(x, y)), plan.devices)
    return tf.reduce_mean(means(x, y))
"""

RIGHT = {
    1: [
        f"{DISTANCE}distances = towers.make_parallel(distance, plan.devices)",
        LOOP,
        f"{DISTANCE}def distances(points, others):\n    with tf.device(plan.host):\n"
        "        both = tf.stack([points, others], axis=1)\n"
        "    run = make_parallel(lambda b: distance(b[:, 0], b[:, 1]), plan.devices)\n"
        "    return run(both)",
        f"{DISTANCE}@tf.function\ndef distances(points, others):\n"
        "    run = towers.make_parallel(distance, plan.devices)\n"
        "    return run(points=points, others=others)",
        f"{DISTANCE}def distances(**batches):\n"
        "    return make_parallel(distance, plan.devices)(batches['points'], batches['others'])",
    ],
    2: [
        UNEVEN.replace("SIZES", FIRST),
        UNEVEN.replace("SIZES", LATER).replace("    def", "    @tf.function\n    def"),
        ARRAYS,
        "def make_parallel_uneven(function, devices):\n"
        "    return towers.make_parallel(function, devices, uneven=True)",
    ],
    3: [MEAN, ON_FIRST, SUMS, SUMS.replace("reshape(tf.reduce_sum(squared_error(x, y)), [1])",
                                 "expand_dims(tf.reduce_sum(squared_error(x, y)), 0)")],
}  # fmt: skip

WRONG = {
    1: [
        ("distances = make_parallel(lambda points: points, plan.devices)", "raises TypeError"),
        ("distances = lambda points, others: tf.zeros(len(points))", "not the distances of each"),
        (f"{DISTANCE}distances = distance", "computed nothing"),
        (LOOP.replace("tf.concat(found", "tf.concat(found[::-1]"), "not in the order"),
        (LOOP.replace("tf.concat(found, axis=0)", "tf.stack(found)"), "one distance for each"),
        (LOOP.replace("tf.device(device)", "tf.device(plan.host)"), "computed nothing"),
        (f"{DISTANCE}def distances(points, others):\n    with tf.device(plan.host):\n"
         "        found = distance(points, others)\n"
         "    return make_parallel(lambda each: 1.0 * each, plan.devices)(found)",
         "cut the two batches"),
        ("def distances(points, others):\n    with tf.device(plan.host):\n"
         "        apart = points - others\n"
         "    return make_parallel(lambda each: tf.norm(each, axis=1), plan.devices)(apart)",
         "/CPU:0 computed Sub"),
        (LOOP.replace("points[rows] - others[rows], axis=1)",
                      "points - others, axis=1)[rows]"), "more than its shard"),
        (COORDINATES, "by their rows"),
        ("distances = make_parallel(lambda p, o: tf.reduce_sum(abs(p - o), axis=1), plan.devices)",
         "not the distances of each"),
    ],
    2: [
        ("make_parallel_uneven = lambda f, d: lambda *x: f(*x)", "differ by one at most"),
        ("make_parallel_uneven = lambda f, d: lambda *x: f(*x)[:10]", "in order"),
        ("make_parallel_uneven = lambda f, d: make_parallel(f, d)", "sizes that add up to 11"),
        (UNEVEN.replace("SIZES", LAST), "differ by one at most"),
        (UNEVEN.replace("SIZES", ONE), "differ by one at most"),
        (UNEVEN.replace("SIZES", CEILING), "differ by one at most"),
        (UNEVEN.replace("SIZES", FIRST).replace("tf.device(device)", "tf.device(plan.host)"),
         "is tf.device in the loop?"),
        (UNEVEN.replace("SIZES", FIRST).replace("concat(outputs", "concat(outputs[::-1]"),
         "not those of the whole batch, in order"),
        (UNEVEN.replace("SIZES", FIRST).replace("zip(devices", "zip(plan.devices"),
         "the whole batch is wanted"),
        (UNEVEN.replace("SIZES", FIRST).replace("*batches", "a, b").replace(
            "sizes = ", "batches = (a, b); sizes = "), "takes 2 positional arguments but 3"),
        (UNEVEN.replace("SIZES", FIRST).replace("in batches]", "in batches[:2]]"),
         "of 3 batches it got 2"),
        (UNEVEN.replace("SIZES", FIRST).replace("axis=0", "axis=-1"),
         "it raises InvalidArgumentError: Concat"),
        (UNEVEN.replace("SIZES", FIRST).replace("tf.device(plan.host)", "tf.name_scope('a')"),
         "/CPU:1 cut the batch"),
        (UNEVEN.replace("SIZES", FIRST).replace("            return", "        return"),
         "/CPU:1 joined the batch"),
        (UNEVEN.replace("SIZES", "[60, 50]"), "give tf.split sizes that add up to"),
        (UNEVEN.replace("SIZES", FIRST).replace("*batches", "batches").replace(
            "for batch in batches]", "for batch in [batches]]"), "raises TypeError"),
    ],
    3: [
        (SCALAR, "keepdims=True"),
        ("mean_error = squared_error", "one number is wanted"),
        ("mean_error = lambda x, y: tf.reduce_mean(squared_error(x, y))", "did nothing"),
        ("mean_error = lambda x, y: tf.reduce_sum(squared_error(x, y))", "not the mean"),
        (MEAN.replace(" / len(plan)", ""), "not the mean"),
        (MEAN.replace("tf.split(x, len(plan)), tf.split(y, len(plan))",
                      "[x] * len(plan), [y] * len(plan)"), "more than its shard"),
        (MEAN.replace("tf.device(plan.host)", "tf.name_scope('nobody')"), "cut the batch on the"),
        (MEAN.replace("tf.reduce_mean(squared_error(*shard))", "squared_error(*shard)").replace(
            "tf.add_n(means) / len(plan)", "tf.reduce_mean(tf.concat(means, 0))"),
         "more than one number"),
    ],
}  # fmt: skip
