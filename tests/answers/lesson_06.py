"""Answers to the exercises of lesson 06: right ones, and wrong ones with their hints."""

CELLS = ["def make_parallel(function, devices):", "def squared_error(x, y):"]

SCALAR = """
def mean_error(x, y):
    means = make_parallel(lambda x, y: tf.reduce_mean(squared_error(x, y)), plan.devices)
    return tf.reduce_mean(means(x=x, y=y))
"""

RIGHT: dict[int, list[str]] = {}

WRONG = {
    1: [
        ("distances = make_parallel(lambda points: points, plan.devices)", "raises TypeError"),
        ("distances = lambda points, others: tf.zeros([24])", "should be 5"),
    ],
    2: [
        ("make_parallel_uneven = lambda f, d: lambda x: f(x)", "differ by one at most"),
        ("make_parallel_uneven = lambda f, d: lambda x: f(x)[:10]", "in order"),
    ],
    3: [
        (SCALAR, "keepdims=True"),
        ("mean_error = squared_error", "one number is wanted"),
        ("mean_error = lambda x, y: tf.reduce_mean(squared_error(x, y))", "did nothing"),
        ("mean_error = lambda x, y: tf.reduce_sum(squared_error(x, y))", "the mean is"),
    ],
}
