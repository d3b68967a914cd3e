"""Answers to the exercises of lesson 01: right ones, and wrong ones with their hints."""

RIGHT: dict[int, list[str]] = {}

WRONG = {
    1: [
        ("answer = '/device:CPU:2'", "job:localhost, replica:0, task:0 is missing"),
        ("answer = '/job:localhost/replica:0/task:0/device:CPU:1'", "the device is not /CPU:2"),
        ("answer = '/job:localhost/replica:0/task:0/CPU:2'", "is written /device:CPU:2"),
        ("answer = tf.DeviceSpec.from_string(plan.devices[-1])", "to_string()"),
    ],
    2: [
        ("choose = lambda op: plan.host", "not on /CPU:1"),
        ("choose = lambda op: None", "not on /CPU:1"),
    ],
    3: [
        ("add_entries = lambda x: tf.matmul(x, x)", "one number is wanted"),
        ("add_entries = lambda x: tf.reduce_sum(tf.matmul(x, x))", "the sum is"),
        ("add_entries = lambda x: len(plan) * tf.reduce_sum(tf.matmul(x, x))",
         "multiplied nothing"),
    ],
}
