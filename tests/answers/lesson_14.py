"""Answers to the exercises of lesson 14: right ones, and wrong ones with their hints."""

RIGHT = {
    1: [
        """
def gated(g, u, d, n):
    return [(g[:, i::n], u[:, i::n], d[i::n]) for i in range(n)]
""",
        """
def gated(g, u, d, n):
    parts, size = [], len(d) // n
    for start in range(0, len(d), size):
        own = slice(start, start + size)
        parts.append([tf.constant(g, "float32")[:, own], u[:, own], tf.constant(d[own])])
    return tuple(parts)
""",
    ],
    2: [
        """
def losses(logits, y):
    tops, sums, own = [], [], []
    for i, part in enumerate(logits):
        with tf.device(part.device):
            top, width = tf.reduce_max(part, axis=1), part.shape[1]
            tops.append(top)
            sums.append(tf.reduce_sum(tf.exp(part - top[:, None]), axis=1))
            own.append(tf.reduce_sum(part * tf.one_hot(y - i * width, width), axis=1))
    with tf.device(first):
        highest = tf.reduce_max(tops, axis=0)
        total = sum(each * tf.exp(top - highest) for each, top in zip(sums, tops))
        return highest + tf.math.log(total) - sum(own)
""",
        """
def losses(logits, y):
    sums, own = [], []
    for i, part in enumerate(logits):
        with tf.device(part.device):
            sums.append(tf.reduce_logsumexp(part, axis=1))
            places = y - i * part.shape[1]
            mine = (places >= 0) & (places < part.shape[1])
            found = tf.gather(part, tf.where(mine, places, 0), axis=1, batch_dims=1)
            own.append(tf.where(mine, found, 0.0))
    return tf.reduce_logsumexp(tf.stack(sums), axis=0) - tf.add_n(own)
""",
        """
@tf.function
def losses(logits, y):
    highest = []
    for part in logits:
        with tf.device(part.device):
            highest.append(tf.reduce_max(part, 1))
    top = tf.reduce_max(tf.stack(highest), 0)
    total = right = 0.0
    for i, part in enumerate(logits):
        with tf.device(part.device):
            own = tf.one_hot(y - i * part.shape[1], part.shape[1])
            more = tf.reduce_sum(tf.exp(part - top[:, tf.newaxis]), 1)
            score = tf.reduce_sum(own * part, 1)
        total, right = total + more, right + score
    return top + tf.math.log(total) - right
""",
    ],
}

WRONG = {
    1: [
        ("d, n, axis=0", "d, n, axis=1", "cut it by rows"),
        ("g, n, axis=1", "g, n, axis=0", "cut it by columns"),
        ("np.split(u, n, axis=1)", "np.split(u, n, axis=1)[::-1]", "same hidden numbers"),
        ("np.split(g, n, axis=1)", "[g] * n", "numbers of g, not"),
        ("np.split(g, n, axis=1), np.split(u, n, axis=1)", "np.split(g, n, axis=1)",
         "3 matrices, not 2"),
        ("n, axis", "2, axis", "3 triples, not 2"),
    ],
    2: [
        ("with tf.device(part.device)", "with tf.device(first)", "bytes for each example"),
        ("tf.reduce_logsumexp(part, axis=1)", "tf.math.log(tf.reduce_sum(tf.exp(part), axis=1))",
         "own highest"),
        ("tf.reduce_logsumexp(part, axis=1)", "tf.reduce_mean(part) + tf.math.log("
         "tf.reduce_sum(tf.exp(part - tf.reduce_mean(part)), axis=1))", "own highest"),
        ("y - i * width", "y - i * 12", "has the loss"),
        ("tf.reduce_logsumexp(logs, axis=0)", "sum(logs)", "has the loss"),
    ],
}
