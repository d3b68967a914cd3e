"""Answers to the exercises of lesson 00: right ones, and wrong ones with their hints."""

SHARE = """
def multiply_columns(left, right):
    pieces = []
    for device, shard in zip(plan.devices, tf.split(right, len(plan), axis=1)):
        with tf.device(device):
            pieces.append(tf.matmul(left, shard))
    return tf.concat(pieces, axis=1)
"""

INSIDE = SHARE.replace("tf.split(right, len(plan), axis=1)", "range(len(plan))").replace(
    "shard))", "tf.split(right, len(plan), axis=1)[shard]))"
)

RIGHT = {
    1: ["answer = tf.ones([2, 2]).device", "answer = '/device:CPU:0'", "answer = 'cpu:0'"],
    2: [
        """
@tf.function
def multiply_columns(left, right):
    wide = right.shape[1] // len(plan)
    with tf.device(plan.host):
        shards = [right[:, i * wide : (i + 1) * wide] for i in range(len(plan))]
    pieces = []
    for device, shard in zip(plan.devices, shards):
        with tf.device(device):
            pieces.append(left @ shard)
    with tf.device(plan.host):
        return tf.concat(pieces, 1)
""",
        """
def multiply_columns(left, right):
    with tf.device(plan.host):
        shards = tf.split(tf.transpose(right), len(plan))
    pieces = []
    for device, shard in zip(plan.devices, shards):
        with tf.device(device):
            pieces.append(tf.einsum("ij,kj->ik", left, shard))
    with tf.device(plan.host):
        return tf.concat(pieces, axis=-1)
""",
        """
def multiply_columns(left, right):
    with tf.device(plan.host):
        shards = [right[:, i :: len(plan)] for i in range(len(plan))]
        pieces = []
        for device, shard in zip(plan.devices, shards):
            with tf.device(device):
                pieces.append(tf.tensordot(left, shard, 1))
        return tf.reshape(tf.stack(pieces, -1), [left.shape[0], -1])
""",
    ],
}

WRONG = {
    1: [
        ("answer = plan.devices[0]", "it is not on /CPU:1"),
        ("answer = plan.devices[-1]", "it is not on /CPU:2"),
        ("answer = 'CPU'", "it is not on CPU"),
        ("answer = tf.ones([2, 2])", "write its .device"),
        ("answer = 0", "a device name is a string"),
        ("answer = tf.DeviceSpec.from_string('/CPU:0')", "a device name is a string"),
    ],
    2: [
        (SHARE.replace("concat(pieces, axis=1)", "concat(pieces, axis=0)"), "along axis 1"),
        (SHARE.replace("concat(pieces, axis=1)", "concat(pieces[::-1], axis=1)"), "in order"),
        (SHARE.replace("tf.device(device)", "tf.device(plan.host)"), "multiplied nothing"),
        (SHARE.replace("    return tf.concat", "    pieces = tf.concat"), "returns nothing"),
        (SHARE.replace(", axis=1)):", ")):"), "it raises"),
        (SHARE, "cut and join in a block of /CPU:0"),
        (SHARE.replace("return", "with tf.device(device):\n        return"), "block of /CPU:0"),
        (SHARE.replace("return", "with tf.device(plan.host):\n        return left @ right + 0 *"),
         "/CPU:0 multiplies"),
        (INSIDE.replace("return", "with tf.device(plan.host):\n        return"),
         "outside the device's block"),
        (RIGHT[2][1].replace("len(plan))", "[300, 540])"), "equal parts"),
        (SHARE.replace("tf.matmul(left, shard)", "tf.reduce_sum(left[:, :, None] * shard, axis=1)"),
         "multiplied nothing"),
    ],
}
