"""The common wrong answers to the exercises, and the hint that each must get.

By lesson: the number of the exercise, the code that stands for its stub (the check, which is the
cell's last statement, stays), and what the line that begins with "not yet" must contain. An answer
may use the plan, what the lesson imports, and what the cells make that `CELLS` names by a line.
"""

CELLS = {"06": ["def make_parallel(function, devices):", "def squared_error(x, y):"]}

SHARE = """
def multiply_columns(left, right):
    pieces = []
    for device, shard in zip(plan.devices, tf.split(right, len(plan), axis=1)):
        with tf.device(device):
            pieces.append(tf.matmul(left, shard))
    return tf.concat(pieces, axis=1)
"""

INSIDE = SHARE.replace("tf.split(right, len(plan), axis=1)", "range(len(plan))").replace(
    "shard))", "tf.split(right, len(plan), axis=1)[shard]))"
)

SCALAR = """
def mean_error(x, y):
    means = make_parallel(lambda x, y: tf.reduce_mean(squared_error(x, y)), plan.devices)
    return tf.reduce_mean(means(x=x, y=y))
"""

ELSEWHERE = """
def half_the_bytes(vectors):
    with tf.device(plan.devices[0]):
        return tf.add_n(vectors) / len(vectors)
"""

WEIGHTED = """
def weighted_average(tower_gradients, sizes):
    return [
        tf.add_n([size / sum(sizes) * gradient for size, gradient in zip(sizes, each)])
        for each in zip(*tower_gradients)
    ]
"""

KEEPS_ALL = """
def train(step, steps):
    history = [step() for _ in range(steps)]
    return [loss for loss, tape in history], history
"""

KEEPS_UNTIL_THE_END = """
def train(step, steps):
    history = [step() for _ in range(steps)]
    return [float(loss) for loss, tape in history]
"""

ANY_VARIABLE = """
def trains(session, fetches, feed):
    names = [v.name for v in session.graph.get_collection("variables")]
    reads = [name.replace(":0", "/Read/ReadVariableOp:0") for name in names]
    before = session.run(reads)
    session.run(fetches, feed)
    return any(not np.array_equal(a, b) for a, b in zip(before, session.run(reads)))
"""

ALL_MOVED = ANY_VARIABLE.replace('"variables"', '"trainable_variables"').replace("any(", "all(")

DEFAULT_GRAPH = """
def trains(session, fetches, feed):
    variables = tf1.trainable_variables()
    before = session.run(variables)
    session.run(fetches, feed)
    return any(not np.array_equal(a, b) for a, b in zip(before, session.run(variables)))
"""

LAST_TWO = """
def agreed(predicted):
    said = [array.argmax(axis=1) for array in predicted.values()]
    return np.where(said[-1] == said[-2], said[-1], -1)
"""

JOIN_EACH = """
def run_all(functions):
    results = [None] * len(functions)
    def call(i):
        results[i] = functions[i]()
    for i in range(len(functions)):
        thread = threading.Thread(target=call, args=[i])
        thread.start()
        thread.join()
    return results
"""

APPEND = """
def run_all(functions):
    results = []
    threads = [threading.Thread(target=lambda f=f: results.append(f())) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
"""

WIDER = "wider = networks.jang(hidden=9600, width=0.25)\n"

WRONG: dict[str, list[tuple[int, str, str]]] = {
    "00": [
        (1, "answer = plan.devices[0]", "it is not on /CPU:1"),
        (1, "answer = 0", "a device name is a string"),
        (2, SHARE.replace("concat(pieces, axis=1)", "concat(pieces, axis=0)"), "along axis 1"),
        (2, SHARE.replace("concat(pieces, axis=1)", "concat(pieces[::-1], axis=1)"), "in order"),
        (2, SHARE.replace("tf.device(device)", "tf.device(plan.host)"), "multiplied nothing"),
        (2, SHARE.replace("    return tf.concat", "    pieces = tf.concat"), "returns nothing"),
        (2, SHARE.replace(", axis=1)):", ")):"), "it raises"),
        (2, SHARE, "cut and join in a block of /CPU:0"),
        (2, SHARE.replace("return", "with tf.device(device):\n        return"), "block of /CPU:0"),
        (2, INSIDE.replace("return", "with tf.device(plan.host):\n        return"),
         "outside the device's block"),
    ],
    "01": [
        (1, "answer = '/device:CPU:2'", "job:localhost, replica:0, task:0 is missing"),
        (1, "answer = '/job:localhost/replica:0/task:0/device:CPU:1'", "the device is not /CPU:2"),
        (1, "answer = '/job:localhost/replica:0/task:0/CPU:2'", "is written /device:CPU:2"),
        (1, "answer = tf.DeviceSpec.from_string(plan.devices[-1])", "to_string()"),
        (2, "choose = lambda op: plan.host", "not on /CPU:1"),
        (2, "choose = lambda op: None", "not on /CPU:1"),
        (3, "add_entries = lambda x: tf.matmul(x, x)", "one number is wanted"),
        (3, "add_entries = lambda x: tf.reduce_sum(tf.matmul(x, x))", "the sum is"),
        (
            3,
            "add_entries = lambda x: len(plan) * tf.reduce_sum(tf.matmul(x, x))",
            "multiplied nothing",
        ),
    ],
    "02": [
        (1, "answer = tf1.ConfigProto()\nanswer.gpu_options.allow_growth = True", "not a quarter"),
        (1, "answer = tf1.ConfigProto(gpu_options=tf1.GPUOptions("
         "per_process_gpu_memory_fraction=25))", "25 times the card"),
        (1, "answer = tf1.ConfigProto(gpu_options=tf1.GPUOptions("
         "per_process_gpu_memory_fraction=0.25))", "at once: let it grow"),
        (1, "answer = plan", "not a Plan"),
        (2, WIDER + "answer = count.fits(wider, 70_000_000)", "above the budget"),
        (2, "answer = 100", "room for more"),
        (2, WIDER + "answer = count.fits(wider, 60_000_000)", "Adam's two slots"),
        (2, "answer = 60_000_000", "far more than fits"),
        (2, "answer = None", "a number of examples"),
        (3, KEEPS_ALL, "4 of 4 tapes were alive"),
        (3, KEEPS_UNTIL_THE_END, "3 of 4 tapes were alive"),
        (3, "def train(step, steps):\n    return sum(float(step()[0]) for _ in range(steps))",
         "as numbers"),
        (3, "def train(step, steps):\n    return [0.0] * steps", "called 0 times in 4 steps"),
        (3, "def train(step, steps):\n    for _ in range(steps):\n        step()",
         "the four losses in order"),
    ],
    "04": [
        (1, "def outside(visible, device):\n    return visible.split(',')[int(device[-1])]",
         "but text"),
        (1, "def outside(visible, device):\n    return int(visible[2 * int(device[-1])])",
         "/GPU:2 is 12"),
        (1, "def outside(visible, device):\n    return int(visible.split(',')[int(device[-1])])",
         "/GPU:11 is 10"),
        (2, "def environment(device):\n    return {'CUDA_VISIBLE_DEVICES': str(device), "
         "'CUDA_DEVICE_ORDER': 'PCI_BUS_ID'}", "the rest of the environment is lost"),
        (2, "def environment(device):\n"
         "    return os.environ | {'CUDA_VISIBLE_DEVICES': str(device)}",
         "set CUDA_DEVICE_ORDER"),
        (2, "def environment(device):\n    return os.environ | {'CUDA_VISIBLE_DEVICES': device}",
         "is not text"),
        (2, "def environment(device):\n    pass", "a dict of text"),
        (3, "def wall(seconds, n):\n    return max(sum(seconds[i::n]) for i in range(n))",
         "take 5"),
        (3, "def wall(seconds, n):\n    return max(seconds)", "take 5"),
        (3, "def wall(seconds, n):\n    free = [0] * n\n"
         "    for length in sorted(seconds, reverse=True):\n"
         "        free[free.index(min(free))] += length\n    return max(free)", "take 5"),
    ],
    "05": [
        (1, ANY_VARIABLE, "only a counter moved"),
        (1, ALL_MOVED, "moves a weight, and it says False"),
        (1, "def trains(session, fetches, feed):\n    return False", "run 0 times"),
        (2, "def agreed(predicted):\n    return -np.ones(6)", "agree on"),
        (2, "def agreed(predicted):\n    return ensemble.mean(predicted)", "give no -1"),
        (2, "def agreed(predicted):\n    pass", "six labels"),
        (2, LAST_TWO, "agree on"),
        (1, DEFAULT_GRAPH, "moves a weight, and it says False"),
        (3, JOIN_EACH, "start all, then join all"),
        (3, APPEND, "in order, not [20, 10, 0]"),
        (3, APPEND.replace("    for thread in threads:\n        thread.join()\n", ""),
         "before the threads had ended"),
    ],
    "09": [
        (1, "starts = ['conv3']", "part 1 holds"),
        (1, "starts = ['output']", "part 1 holds"),
        (1, "starts = 'conv2'", "one name in a list"),
        (1, "starts = ['conv2', 'fc1']", "one name in a list"),
        (1, "starts = ['pool']", "no layer 'pool'"),
        (2, "two_at_most = pipeline.one_by_one", "as long as one piece after the other"),
        (2, "two_at_most = pipeline.all_forward", "stage 0 holds 3 pieces"),
        (2, "two_at_most = lambda stages, pieces: pipeline.one_by_one(pieces, stages)",
         "a schedule for 3"),
        (2, "two_at_most = lambda stages, pieces: [['F0', 'F1', 'F2', 'B0', 'B1', 'B2'],"
         "['F0', 'B1', 'F1', 'B0', 'F2', 'B2']]", "it raises ValueError: stage 1 cannot do B1"),
        (3, "accumulate = lambda f, pieces: tf.add_n([f(x, y) for x, y in pieces])",
         "and not divided"),
        (3, "accumulate = lambda f, pieces: f(*pieces[-1])", "only the last piece"),
        (3, "accumulate = lambda f, pieces: tf.add_n([f(x, y) * len(x) / 16 for x, y in pieces])",
         "6 gradients were held at once"),
        (3, "accumulate = lambda f, pieces: f(*(tf.concat(e, 0) for e in zip(*pieces)))",
         "one call had 16 examples"),
        (3, "accumulate = lambda f, pieces: [f(x, y) for x, y in pieces]", "one gradient like"),
    ],
    "06": [
        (1, "distances = make_parallel(lambda points: points, plan.devices)", "raises TypeError"),
        (1, "distances = lambda points, others: tf.zeros([24])", "should be 5"),
        (2, "make_parallel_uneven = lambda f, d: lambda x: f(x)", "differ by one at most"),
        (2, "make_parallel_uneven = lambda f, d: lambda x: f(x)[:10]", "in order"),
        (3, SCALAR, "keepdims=True"),
        (3, "mean_error = squared_error", "one number is wanted"),
        (3, "mean_error = lambda x, y: tf.reduce_mean(squared_error(x, y))", "did nothing"),
        (3, "mean_error = lambda x, y: tf.reduce_sum(squared_error(x, y))", "the mean is"),
    ],
    "07": [
        (1, WEIGHTED.replace("/ sum(sizes)", ""), "divide the sizes by their sum"),
        (1, WEIGHTED.replace("size / sum(sizes) *", "len(sizes) *"), "not"),
        (1, "weighted_average = lambda towers, sizes: towers[0]", "should become 20"),
        (2, "half_the_bytes = lambda v: tf.cast(tf.add_n(v), tf.float16)", "should be float32"),
        (2, "half_the_bytes = lambda vectors: vectors", "one vector of 1000"),
        (2, "half_the_bytes = lambda vectors: vectors[0][:500]", "one vector of 1000"),
        (2, ELSEWHERE, "should be made on /CPU:0"),
        (2, "half_the_bytes = lambda vectors: vectors[0]", "not right to 0.01"),
        (3, "mask_seed = lambda step, tower: (step * tower, 1)", "has the seed of"),
        (3, "mask_seed = lambda step, tower: step", "two whole numbers"),
    ],
    "11": [
        (1, "efficiency = lambda seconds, scaling: {n: seconds[1] / t for n, t in seconds.items()}",
         "strong scaling"),
        (1, "efficiency = lambda seconds, scaling: 1.0", "strong scaling"),
        (2, "share_of_peak = lambda f, examples, epochs, s, peak: f * examples / s / peak",
         "give 2.5, not 0.25"),
        (2, "share_of_peak = lambda f, n, epochs, s, peak: 100 * f * n * epochs / s / peak",
         "give 2.5, not 250"),
        (3, "fewest = lambda workload, cost, batch, seconds: next(n for n in range(1, 65) if "
         "scaling.central(workload, cost, n, batch).total <= seconds)", "it raises StopIteration"),
        (3, "fewest = lambda workload, cost, batch, seconds: min(range(1, 65), key=lambda n: "
         "scaling.central(workload, cost, n, batch / n).total)", "it is 1 device, not 11"),
    ],
}
