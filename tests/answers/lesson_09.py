"""Answers to the exercises of lesson 09: right ones, and wrong ones with their hints."""

COUNT = """
def crossing(model, name, batch):
    return 2 * 4 * batch * np.prod(model.get_layer(name).input.shape[1:])
"""

RIGHT = {
    1: ["starts = ('conv2',)", "starts = [layer.name for layer in networks.jang().layers[3:4]]"],
    2: [
        """
def crossing(model, name, batch):
    numbers = 1
    for size in model.get_layer(name).input.shape[1:]:
        numbers *= size
    return batch * numbers * 8
""",
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
        ("starts = ['output']", "part 1 holds"),
        ("starts = 'conv2'", "one name in a list"),
        ("starts = ['conv2', 'fc1']", "one name in a list"),
        ("starts = ['drop1']", "one of conv2, conv3"),
        ("starts = [2]", "one of conv2, conv3"),
    ],
    2: [
        (COUNT.replace("2 * 4", "4"), "comes back over the cut"),
        (COUNT.replace("2 * 4", "2"), "float32 takes 4 bytes"),
        (COUNT.replace("batch * np", "np"), "that is one example"),
        (COUNT.replace("2 * 4 * batch * ", ""), "numbers of one example"),
        (COUNT.replace(".input.", ".output."), "what crosses is what it takes"),
        (COUNT.replace(".shape[1:]", ".shape"), "it raises TypeError"),
        (COUNT.replace("2 * 4", "8e-6"), "not 0.032"),
        (COUNT.replace("return", "found ="), "returns nothing"),
        ("""
def crossing(model, name, batch):
    kernel = getattr(model.get_layer(name), "kernel", None)
    if kernel is not None:
        return 8 * batch * kernel.shape[0]
    return 8 * batch * np.prod(model.layers[0].output.shape[1:])
""", "in front of 'flat'"),
    ],
}
