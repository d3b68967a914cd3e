"""Answers to the exercises of lesson 01: right ones, and wrong ones with their hints."""

ADD = """
def add_entries(x):
    sums = []
    for device in plan.devices:
        with tf.device(device):
            sums.append(tf.reduce_sum(tf.matmul(x, x)))
    with tf.device(plan.host):
        return tf.add_n(sums)
"""

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
def choose(op):
    return tf.DeviceSpec.from_string(plan.host if op.type.startswith("Var") else plan.devices[0])
""",
        """
def choose(op):
    if op.type in ("VarHandleOp", "ReadVariableOp", "AssignVariableOp"):
        return plan.host
    return "/device:" + plan.devices[0][1:]
""",
        """
def choose(op):
    around = tf1.train.replica_device_setter(
        ps_tasks=1, ps_device=plan.host, worker_device=plan.devices[0], ps_ops=["VarHandleOp"]
    )
    return tf.DeviceSpec.from_string(around(op)).replace(task=0).to_string()
""",
        """
def choose(op):
    stored = op.outputs and op.outputs[0].dtype == tf.resource
    return plan.host if stored else plan.devices[0]
""",
    ],
    3: [
        """
@tf.function
def add_entries(x):
    with tf.device(plan.host):
        total = 0.0
    for device in plan.devices:
        with tf.device(device):
            mine = tf.einsum("ij,jk->", x, x)
        with tf.device(plan.host):
            total += mine
    return total
""",
        """
def add_entries(x):
    total = 0.0
    for device in plan.devices:
        with tf.device(device):
            total = total + tf.reduce_sum(tf.reduce_sum(x @ x, axis=0))
    return total
""",
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
    ],
}

WRONG = {
    1: [
        ("full_name = lambda name: '/job:localhost/replica:0/task:0/device:CPU:2'",
         "the device is not /CPU:1"),
        ("full_name = lambda name: '/job:localhost/replica:0/task:0' + name",
         "is written /device:CPU:1"),
        ("full_name = lambda name: '/job:localhost/replica:0/task:0/device:' + name.strip('/')",
         "is written /device:CPU:"),
        ("full_name = lambda name: '/job:localhost/task:0' + "
         "tf.DeviceSpec.from_string(name).to_string()", "replica:0 is missing"),
        ("full_name = lambda name: tf.DeviceSpec.from_string(name).replace(job='localhost')",
         "to_string()"),
        ("def full_name(name):\n    spec = tf.DeviceSpec.from_string(name)\n"
         "    return ('/job:localhost/replica:0/task:0/device:'\n"
         "            f'{spec.device_type}:{spec.device_index or 1}')", "the device is not /GPU:0"),
        ("def full_name(name):\n    with tf.device(name):\n        return tf.ones([]).device",
         "the device is not /GPU:0"),
        ("full_name = tf.DeviceSpec.from_string(plan.devices[-1]).to_string()",
         "a function is wanted"),
    ],
    2: [
        ("choose = lambda op: plan.host", "not on /CPU:1"),
        ("choose = lambda op: plan.host if op.type == 'VarHandleOp' else None", "no device"),
        ("choose = lambda op: plan.host if op.type == 'VariableV2' else plan.devices[0]",
         "(VarHandleOp) is on /CPU:1"),
        ("choose = lambda op: plan.devices[0] if op.type == 'VarHandleOp' else plan.host",
         "(VarHandleOp) is on /CPU:1"),
        ("choose = lambda op: plan.host if 'w' in op.name else plan.devices[0]", "not on /CPU:0"),
        ("choose = lambda op: plan.host if 'ar' in op.name else plan.devices[0]", "not on /CPU:0"),
        ("choose = lambda op: plan.host if 'Var' in op.type else '/GPU:9'", "has to be there"),
        ("choose = lambda op: plan.devices[0] if op.inputs else plan.host", "(Const) is on /CPU:0"),
        ("choose = lambda op: plan.host if 'Var' in op.type else op.device", "it gives '', no"),
    ],
    3: [
        ("add_entries = lambda x: tf.matmul(x, x)", "one number is wanted"),
        ("add_entries = lambda x: tf.reduce_sum(tf.matmul(x, x))", "the sum is"),
        ("add_entries = lambda x: len(plan) * tf.reduce_sum(tf.matmul(x, x))",
         "no matrix product ran on /CPU:2"),
        (ADD.replace("tf.reduce_sum(tf.matmul(x, x))", "tf.reduce_sum(tf.matmul(x, x), axis=0)")
         .replace("tf.add_n(sums)", "tf.reduce_sum(tf.add_n(sums))"), "/CPU:1 sent"),
        (ADD.replace("tf.reduce_sum(tf.matmul(x, x))", "tf.matmul(x, x)")
         .replace("tf.add_n(sums)", "tf.reduce_sum(tf.add_n(sums))"), "in its own block"),
        (ADD.replace("tf.device(device)", "tf.device(plan.host)"), "no matrix product ran on"),
        (ADD.replace("return tf.add_n(sums)",
                     "return tf.add_n(sums) + 0 * tf.reduce_sum(tf.matmul(x, x + 1))"),
         "/CPU:0 multiplies"),
        # A product that counts for nothing, beside a formula; and one that counts for a part.
        (ADD.replace("tf.reduce_sum(tf.matmul(x, x))", FORMULA + " + 0 * tf.matmul(x, x)[0, 0]"),
         "the products on /CPU:1 add 0 to the sum"),
        (ADD.replace("tf.reduce_sum(tf.matmul(x, x))", "tf.reduce_sum(tf.matmul(x[:1], x)) + "
                     + FORMULA.replace("x, axis=0", "x[1:], axis=0")),
         "the products on /CPU:1 add"),
        (ADD.replace("(tf.matmul(x, x))", "(tf.cast(tf.matmul(x, x), tf.float64))"), "only 4"),
        (ADD.replace("(x, x))", "(x, x), keepdims=True)"), "one number is wanted"),
        (ADD.replace("    return tf", "    sums = tf"), "returns nothing"),
    ],
}
