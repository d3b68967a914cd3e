"""Answers to the exercises of lesson 00: right ones, and wrong ones with their hints."""

RIGHT = {
    1: [
        "answer = tf.ones([2, 2]).device",
        "answer = 'cpu:0'",
    ],
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
    ],
}

WRONG = {
    1: [
        ("answer = plan.devices[0]", "it is not on /CPU:1"),
        ("answer = 'CPU'", "it is not on CPU"),
        ("answer = tf.ones([2, 2])", "write its .device"),
        ("answer = 0", "a device name is a string"),
        ("answer = tf.DeviceSpec.from_string('/CPU:0')", "a device name is a string"),
    ],
    2: [
        ("concat(pieces", "concat(pieces[::-1]", "are the pieces in order?"),
        ("tf.device(device)", "tf.device(plan.host)", "multiplied nothing"),
        ("tf.device(plan.host)", "tf.name_scope('nobody')", "cut and join in a block of /CPU:0"),
        ("return ", "return left @ right + 0 * ", "/CPU:0 multiplies"),
        ("tf.split(right, len(plan), axis=1)", "range(len(plan))", "left, shard",
         "left, tf.split(right, len(plan), axis=1)[shard]", "outside the device's block"),
        ("len(plan)", "[300, 540]", "equal parts"),
    ],
}
