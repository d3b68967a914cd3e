"""Answers to the exercises of lesson 24: right ones, and wrong ones with their hints."""

RIGHT = {
    1: ["""
def chain(places, kernels, x):
    weights = []
    for place, kernel in zip(places, kernels):
        with tf.device(place):
            weights.append(tf.Variable(kernel))
            x = tf.nn.relu(x @ weights[-1])
    loss = tf.reduce_mean(x)
    return [loss, tf.gradients(loss, weights)]
"""],
    2: ["""
def clipped(sgd, loss, limit):
    def clip(gradient, weight):
        with tf.device(weight.device):
            share = limit / tf.maximum(tf.norm(gradient), limit)
            return share * gradient, weight

    found = sgd.compute_gradients(loss, colocate_gradients_with_ops=True)
    return sgd.apply_gradients([clip(*pair) for pair in found])
"""],
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
    ],
    2: [
        (", colocate_gradients_with_ops=True", "", "colocate the gradients"),
        ("tf1.device(weight.device)", "tf1.device(plan.host)", "in a block of its weight's device"),
        ("tf1.device(weight.device)", "tf1.device(plan.devices[0])", "a gradient crosses from"),
        ("tf1.clip_by_norm(gradient, limit)", "gradient", "the gradients are not clipped"),
        ("tf1.clip_by_norm(gradient, limit)", "limit * tf1.nn.l2_normalize(gradient)",
         "only where it is longer"),
        ("tf1.clip_by_norm(gradient, limit)", "tf1.clip_by_value(gradient, -limit, limit)",
         "not clipped to a norm"),
        ("return sgd.apply_gradients(found)",
         "gradients, weights = zip(*sgd.compute_gradients(loss))\n"
         "    gradients, _ = tf1.clip_by_global_norm(gradients, limit)\n"
         "    return sgd.apply_gradients(zip(gradients, weights))", "by its own norm"),
        ("return sgd.apply_gradients(found)", "return found", "the operation that"),
        ("return sgd.apply_gradients(found)", "return loss", "the weights do not change"),
    ],
}
