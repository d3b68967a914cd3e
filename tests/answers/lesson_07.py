"""Answers to the exercises of lesson 07: right ones, and wrong ones with their hints."""

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
}

WRONG = {
    1: [
        (" / sum(sizes)", "", "divide the sizes by their sum"),
        ("size / sum(sizes)", "1 / len(sizes)", "all shards count the same"),
        ("zip(shares, each)", "zip(shares[::-1], each)", "should give"),
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
}
