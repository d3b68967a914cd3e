"""Answers to the exercises of lesson 01: right ones, and wrong ones with their hints."""

FORMULA = "tf.reduce_sum(tf.reduce_sum(x, axis=0) * tf.reduce_sum(x, axis=1))"  # the same number

RIGHT = {
    1: [
        """
def full_name(name):
    spec = tf.DeviceSpec.from_string(name)
    return spec.replace(job="localhost", replica=0, task=0).to_string()
""",
        """
def full_name(name):
    kind, index = name.upper().removeprefix("/DEVICE:").strip("/").split(":")
    return f"/job:localhost/replica:0/task:0/device:{kind}:{index}"
""",
    ],
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
        """
def add_entries(x):
    sums = []
    for device in plan.devices:
        with tf.device(device):
            sums.append(tf.reduce_sum(tf.linalg.matvec(x, tf.reduce_sum(x, axis=1))))
    with tf.device(plan.host):
        return tf.reduce_sum(tf.stack(sums))
""",
        ("tf.matmul(x, x))", "tf.cast(tf.matmul(x, x), tf.int32))"),
        ("tf.reduce_sum(tf.matmul(x, x))", "tf.stop_gradient(tf.reduce_sum(tf.matmul(x, x)))"),
    ],
}

WRONG = {
    1: [
        ("full_name = lambda name: '/job:localhost/replica:0/task:0/device:CPU:2'",
         "the device is not /CPU:1"),
        ("full_name = lambda name: '/job:localhost/replica:0/task:0' + name",
         "is written /device:CPU:1"),
        (", replica=0", "", "replica:0 is missing"),
        (".to_string()", "", "to_string()"),
        ("from_string(name)", "from_string(name).replace(device_index=1)",
         "the device is not /CPU:2"),
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
        ("tf.reduce_sum(tf.matmul(x, x))",
         FORMULA + " + tf.stop_gradient(0 * tf.matmul(x, x)[0, 0])",
         "the products on /CPU:1 add 0 to the sum,"),
        ("(tf.matmul(x, x))", "(tf.cast(tf.matmul(x, x), tf.float64))", "only 4"),
    ],
}
