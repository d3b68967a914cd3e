"""Answers to the exercises of lesson 03: right ones, and wrong ones with their hints."""

RIGHT = {
    1: ["""
def weighted(losses, weights):
    total = tf.distribute.get_replica_context().all_reduce("SUM", tf.reduce_sum(weights))
    return fit.loss(tf.reduce_sum(weights * losses) / total, "sum")
"""],
    2: ["""
def kind(loss, x):
    head, tail = x[:2], x[2:]
    shared = (len(head) * loss(head) + len(tail) * loss(tail)) / len(x)
    if abs(shared - loss(x)) < 1e-9:
        return "mean"
    if abs(loss(head) + loss(tail) - loss(x)) < 1e-9:
        return "sum"
    return "neither"
"""],
}

VALUE = "tf.math.divide_no_nan(tf.reduce_sum(weights * losses), count)"

WRONG = {
    1: [
        (f"fit.loss({VALUE}, count)", VALUE, "fit refuses it"),
        (f"{VALUE}, count", f'{VALUE}, "mean"', "counts by its number of examples"),
        (f"{VALUE}, count", f'{VALUE}, "sum"', "added up as a sum"),
        (f"fit.loss({VALUE}, count)", "tf.reduce_mean(weights * losses)", "divide by the sum"),
        (f"fit.loss({VALUE}, count)", "tf.reduce_sum(weights * losses)", "it is not divided"),
        (VALUE, "tf.reduce_sum(weights * losses) / count", "tf.math.divide_no_nan"),
        (f"{VALUE}, count", f"{VALUE}, tf.math.count_nonzero(weights)", "are not 0"),
        (f"fit.loss({VALUE}, count)", "weights * losses", "return one number"),
        (f"fit.loss({VALUE}, count)", "tf.reduce_mean(losses)", "the weights have no effect"),
    ],
}
