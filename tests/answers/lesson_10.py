"""Answers to the exercises of lesson 10: right ones, and wrong ones with their hints."""

RIGHT = {
    1: ["""
def fewest(batch, room, fixed, added, example):
    pieces = np.arange(1, batch + 1)
    held = fixed + np.where(pieces > 1, added, 0) + np.ceil(batch / pieces) * example
    fits = pieces[held <= room]
    return fits[0] if len(fits) else 0
"""],
    2: [
        "drop = lambda x, seed: tf.nn.experimental.stateless_dropout(x, 0.5, seed)",
        """
def drop(x, seed):
    mask = tf.random.stateless_binomial(tf.shape(x), seed, 1.0, 0.5, output_dtype=x.dtype)
    return 2 * mask * x
""",
    ],
}

AGAIN = """
def drop(x, seed):
    tf.random.set_seed(seed[0])
    return tf.nn.dropout(x, 0.5)
"""

RERUN = """
def drop(x, seed):
    tf.random.set_seed(seed[0])
    return tf.nn.dropout(x, 0.5, seed=seed[1])
"""

FOURS = """
def drop(x, seed):
    drawn = tf.random.stateless_uniform([tf.size(x) // 4], seed)
    kept = tf.reshape(tf.repeat(drawn, 4), tf.shape(x)) < 0.5
    return tf.where(kept, 2 * x, tf.zeros_like(x))
"""

BOARD = """
def drop(x, seed):
    board = tf.range(tf.shape(x)[0])[:, None] + tf.range(tf.shape(x)[1]) + sum(seed)
    return tf.where(board % 2 == 0, 2 * x, tf.zeros_like(x))
"""

WRONG = {
    1: [("<= room", "< room", "take the first that fits")],
    2: [
        ("kept, 2 * x", "kept, x", "has to be doubled"),
        ("seed) < 0.5", "seed) < 0.2", "not about half"),
        ("seed) < 0.5", "[1, 2]) < 0.5", "two seeds gave the same mask"),
        ("seed) < 0.5", "[tf.reduce_sum(seed), 0]) < 0.5", "swapped, gave the same mask"),
        ("seed) < 0.5", "[seed[0], 0]) < 0.5", "use both numbers"),
        ("drop = lambda x, seed: 2 * x", "drop some, and not all"),
        ("drop = lambda x, seed: tf.nn.dropout(x, 0.5)", "it gave two masks"),
        (AGAIN, "in a graph"),
        (RERUN, "a graph that ran twice"),
        (FOURS, "neighbours share a draw"),
        (BOARD, "the mask has a pattern"),
        ("seed) < 0.5", "[seed[0] + 7 * seed[1], 0]) < 0.5", "the seeds [0, 1] and [7, 0]"),
        ("tf.shape(x), seed", "tf.shape(x)[:1] // tf.shape(x)[0] * tf.shape(x)[1], seed", "rows"),
    ],
}
