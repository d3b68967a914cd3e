"""Answers to the exercises of lesson 09: right ones, and wrong ones with their hints."""

RIGHT = {
    1: [
        "weighted_average = lambda towers, sizes:"
        " [np.average([g.numpy() for g in each], axis=0, weights=sizes) for each in zip(*towers)]",
        "weighted_average = lambda t, sizes: towers.average(t, weights=sizes)",
    ],
    2: [
        ("def", "@tf.function\ndef", "tf.float16", '"float16"'),
        ("tf.cast(vector, tf.float16)", "tf.bitcast(tf.cast(vector, tf.float16), tf.int16)",
         "(each,", "(tf.bitcast(each, tf.float16),"),
    ],
    3: [
        "mask_seed = lambda step, tower: tf.stack([step, tower + 100])",
        "mask_seed = lambda step, tower: divmod(8 * step + tower, 1000)",
    ],
}

WRONG = {
    1: [
        (" / sum(sizes)", "", "divide the sizes by their sum"),
        ("size / sum(sizes)", "1 / len(sizes)", "all shards count the same"),
        ("zip(shares, each)", "zip(shares[::-1], each)", "should become"),
        ("zip(*tower_gradients)]", "zip(*tower_gradients)][:1]", "1 gradients for 2 variables"),
        ("shares = ", "shares = sizes[:] = ", "make new ones"),
    ],
    2: [
        ("tf.device(device)", "tf.device(plan.devices[0])", "straight to /CPU:0"),
        ("tf.cast(vector, tf.float16)", "vector", "cast in its block"),
        ("tf.float16", "tf.bfloat16", "as coarse as bfloat16"),
        ("tf.add_n([tf.cast(each, tf.float32) for each in small])",
         "tf.cast(tf.add_n(small), tf.float32)", "rounded more than once"),
        ("(vector, tf", "(tf.clip_by_value(vector, -2, 2), tf", "off by 0.0"),
    ],
    3: [
        ("mask_seed = lambda step, tower: (20 * tower + step, 0)", "has the seed of"),
        ("mask_seed = lambda step, tower: (step % 777_777, tower)", "has the seed of"),
        ("mask_seed = lambda step, tower: (step / 2, tower)", "two whole numbers"),
        ("import itertools\nnumbers = itertools.count()\n"
         "mask_seed = lambda step, tower: (next(numbers), 0)", "alone should make it"),
        ("import hashlib\nmask_seed = lambda *two: "
         "(int(hashlib.md5(b'%d %d' % two).hexdigest()[:8], 16) // 2, 0)", "has the seed of"),
    ],
}
