"""Answers to the exercises of lesson 24: right ones, and wrong ones with their hints."""

RIGHT = {
    1: [
        """
def chain(places, kernels, x):
    weights = []
    for place, kernel in zip(places, kernels):
        with tf.device(place):
            weights.append(tf.Variable(kernel))
            x = tf.nn.relu(x @ weights[-1])
    loss = tf.reduce_mean(x)
    return [loss, tf.gradients(loss, weights)]
""",
        """
def chain(places, kernels, x):
    kept, weights = [], []
    for place, kernel in zip(places, kernels):
        with tf1.device(place):
            weights.append(tf1.Variable(kernel))
            before, x = x, tf1.nn.relu(tf1.matmul(x, weights[-1]))
            kept.append((before, x))
    loss = tf1.reduce_mean(x)
    back, found = tf1.gradients(loss, x)[0], []
    for place, weight, (before, after) in list(zip(places, weights, kept))[::-1]:
        with tf1.device(place):
            gradient, back = tf1.gradients(after, [weight, before], back)
            found.insert(0, gradient)
    return loss, found
""",
    ],
    2: [
        """
def in_turn(loss_of, weights, xs, ys):
    sums = None
    for x, y in zip(xs, ys):
        with tf.control_dependencies(sums or []):
            found = tf1.gradients(loss_of(tf.identity(x), y), weights)
            sums = found if sums is None else [a + b for a, b in zip(sums, found)]
    return [each / len(xs) for each in sums]
""",
        """
def in_turn(loss_of, weights, xs, ys):
    done, found = tf.no_op(), []
    for x, y in zip(xs, ys):
        with tf1.control_dependencies([done]):
            found.append(tf.gradients(loss_of(x, y), weights))
            done = tf.group(*found[-1])
    return [tf.add_n(column) / len(xs) for column in zip(*found)]
""",
    ],
}

WRONG = {
    1: [
        (", colocate_gradients_with_ops=True", "", "colocate the gradients"),
        ("tf1.reduce_mean", "tf1.reduce_sum", "the loss is not right"),
        ("return loss, tf1", "return tf1", "the loss and a list of gradients"),
        ('"w{n}", initializer=kernel))\n            x', '"w{n}", initializer=kernel))\n        x',
         "multiply in a block of the device"),
        ("weights.append(", "with tf1.device(places[0]):\n                weights.append(",
         "make it in a block of its device"),
        ("tf1.nn.relu(tf1.matmul(x, weights[-1]))", "tf1.matmul(x, weights[-1])", "is not right"),
    ],
    2: [
        ("before = found", "before = []", "does not wait for the gradients of piece 0"),
        ("found = tf1.gradients(loss_of(x, y) / len(xs), weights)",
         "end = loss_of(x, y) / len(xs)\n            found = tf1.gradients(end, weights)",
         "before = found", "before = [end]", "only for its loss"),
        (" / len(xs)", "", "the mean of the losses of its pieces"),
        ("return sums", "return found", "the gradient of weight 0 is not right"),
        ("return sums", "return sums[:1]", "a gradient for each weight"),
    ],
}
