"""Answers to the exercises of lesson 07: right ones, and wrong ones with their hints."""

WEIGHTED = """
def weighted_average(tower_gradients, sizes):
    return [
        tf.add_n([size / sum(sizes) * gradient for size, gradient in zip(sizes, each)])
        for each in zip(*tower_gradients)
    ]
"""

TWO = """
def weighted_average(tower_gradients, sizes):
    (a, b), first, second = sizes[:2], tower_gradients[0], tower_gradients[1]
    return [(a * x + b * y) / (a + b) for x, y in zip(first, second)]
"""

IN_PLACE = WEIGHTED.replace("    return", "    {}\n    return")

HALF = """
def half_the_bytes(vectors):
    small = []
    for device, vector in zip(plan.devices, vectors):
        with tf.device(device):
            small.append(tf.cast(vector, tf.float16))
    with tf.device(plan.host):
        return tf.add_n([tf.cast(each, tf.float32) for each in small]) / len(vectors)
"""

CHAIN = """
def half_the_bytes(vectors):
    total = None
    for device, vector in zip(plan.devices, vectors):
        with tf.device(device):
            vector = vector if total is None else vector + tf.cast(total, tf.float32)
            total = tf.cast(vector, tf.float16)
    with tf.device(plan.host):
        return tf.cast(total, tf.float32) / len(vectors)
"""

ELSEWHERE = """
def half_the_bytes(vectors):
    with tf.device(plan.devices[0]):
        return tf.add_n(vectors) / len(vectors)
"""

SENT_WHOLE = """
def half_the_bytes(vectors):
    with tf.device(plan.host):
        return tf.add_n([tf.cast(tf.cast(v, tf.float16), tf.float32) for v in vectors]) / 2
"""

RIGHT = {
    1: [
        WEIGHTED,
        "weighted_average = lambda towers, sizes:"
        " [np.average([g.numpy() for g in each], axis=0, weights=sizes) for each in zip(*towers)]",
        """
def weighted_average(tower_gradients, sizes):
    sizes = tf.constant(sizes, tf.float32)
    shares = sizes / tf.reduce_sum(sizes)
    return [tf.tensordot(shares, tf.stack(each), 1) for each in zip(*tower_gradients)]
""",
        "weighted_average = lambda t, sizes: towers.average(t, weights=sizes)",
    ],
    2: [
        """
def half_the_bytes(vectors):
    parts = towers.run(lambda v: tf.cast(v / len(vectors), tf.float16), plan.devices, vectors)
    with tf.device(plan.host):
        return sum(tf.cast(part, tf.float32) for part in parts)
""",
        """
@tf.function
def half_the_bytes(vectors):
    small = []
    for device, vector in zip(plan.devices, vectors):
        with tf.device(device):
            small.append(tf.cast(vector, "float16"))
    with tf.device(plan.host):
        return tf.reduce_mean(tf.cast(tf.stack(small), "float32"), axis=0)
""",
        HALF.replace("tf.add_n(", "sum("),
        HALF.replace("tf.cast(vector, tf.float16)", "tf.bitcast(tf.cast(vector, tf.float16), "
                     "tf.int16)").replace("(each,", "(tf.bitcast(each, tf.float16),"),
    ],
    3: [
        "mask_seed = lambda step, tower: (tower, step)",
        "mask_seed = lambda step, tower: [8 * step + tower, 7]",
        "mask_seed = lambda step, tower: tf.stack([step, tower + 100])",
        "mask_seed = lambda step, tower: (1_000_000 * tower + step, 0)",
        "mask_seed = lambda step, tower: divmod(8 * step + tower, 1000)",
    ],
}

WRONG = {
    1: [
        (WEIGHTED.replace("/ sum(sizes)", ""), "divide the sizes by their sum"),
        (WEIGHTED.replace("/ sum(sizes)", "/ len(sizes)"), "divide the sizes by their sum"),
        (WEIGHTED.replace("size / sum(sizes) *", "1 / len(sizes) *"), "all shards count the same"),
        (WEIGHTED.replace("zip(sizes, each)", "zip(sizes[::-1], each)"), "should become"),
        ("weighted_average = lambda towers, sizes: towers[0]", "should become"),
        ("weighted_average = lambda towers, sizes: towers[0][:1]", "1 gradients for 2 variables"),
        ("def weighted_average(towers, sizes):\n"
         "    a, b = (sum(s * g for s, g in zip(sizes, each)) for each in zip(*towers))\n"
         "    return [a / sum(sizes), b / sum(sizes)]", "too many values"),
        (TWO, "from shards of"),
        (WEIGHTED.replace("zip(sizes, each)", "zip(sorted(sizes), each)"), "should become"),
        (IN_PLACE.format("sizes[:] = [size / sum(sizes) for size in sizes]"), "make new ones"),
        (IN_PLACE.format("tower_gradients[0] = [0.0 + each for each in tower_gradients[0]]"),
         "make new ones"),
    ],
    2: [
        ("half_the_bytes = lambda v: tf.cast(tf.add_n(v), tf.float16)", "should be float32"),
        ("half_the_bytes = lambda vectors: vectors", "one vector of 4000"),
        ("half_the_bytes = lambda vectors: vectors[0][:500]", "one vector of 4000"),
        (ELSEWHERE, "straight to /CPU:0"),
        (CHAIN, "straight to /CPU:0"),
        (SENT_WHOLE, "cast in its block"),
        (HALF.replace("tf.cast(vector, tf.float16)", "vector"), "cast in its block"),
        (HALF.replace("tf.float16", "tf.bfloat16"), "as coarse as bfloat16"),
        (HALF.replace("tf.add_n([tf.cast(each, tf.float32) for each in small])",
                      "tf.cast(tf.add_n(small), tf.float32)"), "rounded more than once"),
        (HALF.replace(" / len(vectors)", ""), "off by"),
        (HALF.replace("tf.cast(vector, tf.float16)", "vector[::2]").replace(
            "return tf.add_n(", "return tf.repeat(tf.add_n(").replace("small])", "small]), 2)"),
         "in float16 it is off by"),
        (HALF.replace("(vector, tf", "(tf.clip_by_value(vector, -2, 2), tf"), "off by 0.0"),
        ("half_the_bytes = lambda vectors: vectors[0]", "off by"),
    ],
    3: [
        ("mask_seed = lambda step, tower: (step * tower, 1)", "has the seed of"),
        ("mask_seed = lambda step, tower: (20 * tower + step, 0)", "has the seed of"),
        ("mask_seed = lambda step, tower: (123_457 * tower + step, 0)", "has the seed of"),
        ("mask_seed = lambda step, tower: (step % 100_000, tower)", "has the seed of"),
        ("mask_seed = lambda step, tower: (step % 777_777, tower)", "has the seed of"),
        ("mask_seed = lambda step, tower: ((8 * step + tower) % 3_000_000, 0)", "has the seed of"),
        ("mask_seed = lambda step, tower: (step, tower % 4)", "has the seed of"),
        ("mask_seed = lambda step, tower: (step, 0)", "has the seed of"),
        ("mask_seed = lambda step, tower: (step / 2, tower)", "two whole numbers"),
        ("import itertools\nnumbers = itertools.count()\n"
         "mask_seed = lambda step, tower: (next(numbers), 0)", "alone should make it"),
        ("mask_seed = lambda step, tower: step", "two whole numbers"),
        ("import hashlib\n"
         "mask_seed = lambda *two: (int(hashlib.md5(b'%d %d' % two).hexdigest()[:8], 16) // 2, 0)",
         "has the seed of"),
    ],
}  # fmt: skip
