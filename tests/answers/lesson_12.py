"""Answers to the exercises of lesson 12: right ones, and wrong ones with their hints."""

RIGHT = {
    1: ["starts = ('conv2',)", "starts = [layer.name for layer in networks.jang().layers[3:4]]"],
    2: [
        """
def crossing(model, name, batch):
    names = [layer.name for layer in model.layers]
    before = model.layers[names.index(name) - 1]
    activations = np.zeros([batch, *before.output.shape[1:]], "float32")
    return float(activations.nbytes + activations.nbytes)
""",
        """
def crossing(model, name, batch):
    x = tf.zeros([batch, *model.input_shape[1:]])
    for layer in model.layers:
        if layer.name == name:
            return tf.size(x) * 2 * x.dtype.size
        x = layer(x)
""",
    ],
}

WRONG = {
    1: [
        ("starts = ['conv3']", "part 1 holds"),
        ("starts = 'conv2'", "one name in a list"),
        ("starts = ['conv2', 'fc1']", "one name in a list"),
        ("starts = ['drop1']", "one of conv2, conv3"),
        ("starts = [2]", "one of conv2, conv3"),
    ],
    2: [("[1:])", "[1:4:3])", "in front of 'pool'")],
}
