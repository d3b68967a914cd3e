"""Answers to the exercises of lesson 06: right ones, and wrong ones with their hints."""

CELLS = [
    "hidden = [layers.Dense", "def saliency(x", "def on_each(function, places, *shards):",
    "def make_parallel(function, places):",
]

MEAN = """
def mean_map(x):
    means = []
    with tf.device(plan.host):
        shards = tf.split(x, len(plan))
    for device, shard in zip(plan.devices, shards):
        with tf.device(device):
            means.append(tf.reduce_mean(saliency(shard), axis=0))
    with tf.device(plan.devices[0]):
        return tf.add_n(means) / len(plan)
"""

AROUND = """
def mean_map(x):
    with tf.device(plan.host):
        with tf.GradientTape() as tape:
            tape.watch(x)
            scores = make_parallel(lambda x: tf.reduce_max(model(x), axis=1), plan.devices)(x)
        return tf.reduce_mean(tape.gradient(scores, x), axis=0)
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
        ("tf.reduce_mean(saliency(x), axis=0, keepdims=True)",
         "tf.reduce_sum(saliency(x), axis=0)[None]",
         "return tf.reduce_mean(make", "with tf.device(plan.host):\n        return 1 / len(x) * "
         "tf.reduce_sum(make"),
    ],
}

WRONG = {
    1: [
        ("make_parallel_uneven = lambda f, d: make_parallel(f, d)", "sizes that add up to 11"),
        ("[least + 1] * more + [least] * (len(places) - more)",
         "[least + more] + [least] * (len(places) - 1)", "differ by one at most"),
        ("    return parallel\n", "", "return the function that cuts and joins, not None"),
        ("on_each(function, places", "on_each(function, [plan.host] * len(places)",
         "is tf.device in the loop?"),
        ("*shards)", "*shards)[::-1]", "not those of the whole batch, in order"),
        ("in batches]", "in batches[:2]]", "of 3 batches it got 2"),
        ("tf.device(plan.host)", "tf.name_scope('a')", "/CPU:1 cut the batch"),
        ("            return", "        return", "/CPU:1 joined the batch"),
    ],
    2: [
        ("mean_map = lambda x: tf.reduce_mean(saliency(x), axis=0)", "did nothing"),
        ("mean_map = lambda x: tf.reduce_sum(saliency(x), axis=0)", "the sum over all images"),
        ("return tf.reduce_mean(make_parallel(mean_of_shard, plan.devices)(x), axis=0)",
         "return make_parallel(mean_of_shard, plan.devices)(x)", "the means of the shards"),
        (MEAN.replace("tf.split(x, len(plan))", "[x] * len(plan)"), "more than its shard"),
        (MEAN.replace("tf.device(plan.host)", "tf.name_scope('nobody')"), "cut the batch on the"),
        ("mean_map = lambda x: tf.reduce_mean(make_parallel(saliency, plan.devices)(x), axis=0)",
         "sent more than one image: take the mean of a shard"),
        (MEAN.replace("tf.split", "np.split"), "which NumPy does not take: use tf.split"),
        (MEAN.replace(" / len(plan)", ""), "means were added"),
        (MEAN.replace("tf.add_n(means) / len(plan)", "means[0]"), "the mean of one shard"),
        ("tf.reduce_mean(saliency(x), axis=0, keepdims=True)",
         "tf.reduce_sum(saliency(x), axis=0, keepdims=True)", "a shard's sum is no mean"),
        ("tf.reduce_mean(saliency(x), axis=0, keepdims=True)",
         "saliency(tf.reduce_mean(x, axis=0, keepdims=True))", "saliency of a mean image"),
        (", keepdims=True", "", "joined row by row"),
        (", axis=0, keepdims=True", "", "no image: take it over the images alone"),
        ("return tf.reduce_mean(make", "return tf.reduce_mean(towers.make",
         "use the make_parallel of this lesson"),
        (", plan.devices)(x), axis=0)", ", plan.devices)(x).numpy(), axis=0)", "and no .numpy()"),
        ("tf.reduce_mean(saliency(x), axis=0, keepdims=True)",
         "2 * tf.reduce_mean(saliency(x), axis=0, keepdims=True) / 3", "this is 0.667 times"),
        (AROUND, "computed matrix products: leave the model and its tape to the devices"),
    ],
}
