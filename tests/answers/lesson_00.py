"""Answers to the exercises of lesson 00: right ones, and wrong ones with their hints."""

CELLS = ["def build():"]

RIGHT = {
    1: [
        """
def build_on_all():
    return fit.use(build(), plan)
""",
        """
def build_on_all():
    with tf.distribute.MirroredStrategy(plan.devices).scope():
        return build()
""",
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
        ("fit.strategy(plan).scope()", "tf.device(plan.host)", "not every device"),
        ("build_on_all = build()\n", "not a model"),
        ("return build()", "build()", "return the model"),
        ("return build()", "return keras.Sequential([keras.Input([28, 28, 1])])", "it raises"),
        ("fit.strategy(plan)", "tf.distribute.MirroredStrategy()", "/CPU:0 computed convolutions"),
    ],
    2: [
        ("concat(pieces", "concat(pieces[::-1]", "are the pieces in order?"),
        ("tf.device(device)", "tf.device(plan.host)", "multiplied nothing"),
        ("tf.device(plan.host)", "tf.name_scope('nobody')", "cut and join in a block of /CPU:0"),
        ("return ", "return left @ right + 0 * ", "/CPU:0 multiplies"),
        ("tf.split(right, len(plan), axis=1)", "range(len(plan))", "left, shard",
         "left, tf.split(right, len(plan), axis=1)[shard]", "outside the device's block"),
        ("len(plan)", "[300, 540]", "equal parts"),
        ("""
def multiply_columns(left, right):
    pieces = []
    with tf.device(plan.host):
        rows, columns = tf.split(right, len(plan)), tf.split(left, len(plan), axis=1)
        for device, wide, high in zip(plan.devices, columns, rows):
            with tf.device(device):
                pieces.append(wide @ high)
        return tf.add_n(pieces)
""", "along axis 1"),
    ],
}
