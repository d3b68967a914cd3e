"""Answers to the exercises of lesson 14: right ones, and wrong ones with their hints."""

RIGHT = {
    1: ["""
def gated(g, u, d, n):
    return [(g[:, i::n], u[:, i::n], d[i::n]) for i in range(n)]
"""],
    2: ["""
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
"""],
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
