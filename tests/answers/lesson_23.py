"""Answers to the exercises of lesson 23: right ones, and wrong ones with their hints."""

RIGHT = {
    1: ["""
def unshared(names):
    from collections import Counter

    found = Counter(name.split("/", 1)[1].split(":")[0] for name in names)
    return tuple(sorted(name for name, count in found.items() if count != 1))
"""],
    2: [
        """
def hidden(units, keep, scale):
    dense = layers.Dense(units, kernel_regularizer=keras.regularizers.L2(scale / 2))
    return dense, layers.ReLU(), layers.Dropout(1 - keep)
""",
        ("keras.regularizers.L2(scale / 2)", "lambda kernel: scale * tf.nn.l2_loss(kernel)"),
    ],
}

WRONG = {
    2: [
        ("1 - keep", "keep", "takes the share to drop"),
        ("scale / 2", "scale", "half of the sum of squares"),
        ("L2(", "L1(", "L2, and not L1"),
        ("kernel_regularizer=penalty", "kernel_regularizer=penalty, bias_regularizer=penalty",
         "the bias has no penalty"),
        ("kernel_regularizer=penalty", "name=None", "no penalty yet"),
        ('"relu"', "None", "a dense layer with ReLU"),
        ("[dense, layers.Dropout(1 - keep)]", "[layers.Dropout(1 - keep), dense]",
         "drop units after the activation"),
        ("[dense, layers.Dropout(1 - keep)]", "[dense]", "nothing is dropped"),
        ("1 - keep", "0.4", "of the units"),
        ("layers.Dense(units", "layers.Dense(10", "have the shapes"),
    ],
}
