"""Answers to the exercises of lesson 04: right ones, and wrong ones with their hints."""

FORMULA = "tf.reduce_sum(tf.reduce_sum(x, axis=0) * tf.reduce_sum(x, axis=1))"  # the same number

RIGHT = {
    1: ["""
@tf.function
def gradients(x, a, b):
    with tf.device(ends[0]):
        middle = tf.einsum("ij,jk->ik", x, a)
    with tf.device(ends[1]):
        of_product = 2 * tf.matmul(middle, b)
        of_middle = tf.matmul(of_product, b, transpose_b=True)
        of_b = tf.matmul(middle, of_product, transpose_a=True)
    with tf.device(ends[0]):
        return tf.matmul(x, of_middle, transpose_a=True), of_b
"""],
    2: [
        """
@tf.function
def add_entries(x):
    total = 0
    for device in plan.devices:
        with tf.device(device):
            whole = tf.cast(x, tf.int32)
            mine = tf.reduce_sum(tf.matmul(whole, whole))
        with tf.device(plan.host):
            total += mine
    return total
""",
        ("tf.reduce_sum(tf.matmul(x, x))", "tf.stop_gradient(tf.reduce_sum(tf.matmul(x, x)))"),
    ],
}

WRONG = {
    1: [
        ("gradients = lambda x, a, b: (a, b)", "the gradient of a is wrong: this is a itself"),
        ("of_a, of_b\n", "of_a\n", "two gradients are wanted, not 5"),
        ("of_a, of_b\n", "of_b, of_a\n", "the gradient of a is wanted"),
        ("(middle, a, of_middle)", "(middle, a)", "it begins with that of middle"),
        (") ** 2)", "))", "the gradient of a is wrong: the function as it was"),
        ("with tf.device(ends[0]), tf", "with tf.device(ends[1]), tf",
         "no forward product ran on /CPU:1: leave the one with a"),
        ("        of_middle, of_b", "    of_middle, of_b",
         "/CPU:1 computed the gradient of middle and the gradient of b instead of /CPU:2: call"),
        ("    with tf.device(ends[0]):\n        of_a", "    with tf.device(ends[1]):\n        of_a",
         "/CPU:2 computed the gradient of a instead of /CPU:1: call gradient for that"),
        ("return of_a, of_b", "return of_a, of_b + 0 * tf.matmul(middle, x, True)[0, 0]",
         "6 products ran"),
    ],
    2: [
        ("add_entries = lambda x: tf.reduce_sum(tf.matmul(x, x))", "the sum is"),
        ("add_entries = lambda x: len(plan) * tf.reduce_sum(tf.matmul(x, x))",
         "no matrix product ran on /CPU:2"),
        ("(x, x))", "(x, x), axis=0)", "add_n(sums)", "reduce_sum(tf.add_n(sums))", "/CPU:1 sent"),
        # Sums outside of the blocks: the first device makes them, the others send their products.
        ("    sums.append(tf.reduce_sum(tf.matmul(x, x)))",
         "    product = tf.matmul(x, x)\n        sums.append(tf.reduce_sum(product))",
         "/CPU:2 sent 22,500 bytes: add up the entries of its product"),
        ("add_n(sums)", "add_n(sums) + 0 * tf.reduce_sum(tf.matmul(x, x + 1))",
         "/CPU:0 multiplies"),
        # A product that counts for nothing, beside a formula.
        ("tf.reduce_sum(tf.matmul(x, x))", FORMULA + " + 0 * tf.matmul(x, x)[0, 0]",
         "the products on /CPU:1 add 0 to the sum"),
        ("(tf.matmul(x, x))", "(tf.cast(tf.matmul(x, x), tf.float64))", "only 4"),
    ],
}
