"""Answers to the exercises of lesson 12: right ones, and wrong ones with their hints."""

RIGHT = {
    1: ["""
def choose(cuts, budget):
    def crossed(cut):
        return np.sum([part.crossing for part in cut.parts])

    for cut in sorted(cuts, key=crossed):
        if not any(part.bytes > budget for part in cut.parts):
            return cut
"""],
    2: ["""
def crossing(model, names, batch):
    x, total = tf.zeros([batch, *model.input_shape[1:]]), 0
    for layer in model.layers:
        if layer.name in names:
            total += tf.size(x) * 2 * x.dtype.size
        x = layer(x)
    return total
"""],
}

WRONG = {
    1: [("default=None)", "default=None).starts", "not ('layer")],
    2: [("[1:])", "[1:4:3])", "in front of 'pool'")],
}
