"""Answers to the exercises of lesson 02: right ones, and wrong ones with their hints."""

CELLS = ["def regions(tensors)"]

RIGHT = {
    1: [
        "answer = tf1.ConfigProto(gpu_options=tf1.GPUOptions("
        "allow_growth=True, per_process_gpu_memory_fraction=1 / 4))",
        ("tf1.ConfigProto()", "plan.session_config()"),
    ],
    2: [
        """
def prepare(gpus):
    *_, a, b = gpus
    tf.config.set_visible_devices([a, b], "GPU")
    tf.config.experimental.set_memory_growth(a, True)
    tf.config.experimental.set_memory_growth(b, True)
    return a, b
""",
        ("(gpus[-2:]", "([gpus[-1], gpus[-2]]",
         "in gpus[-2:]", 'in tf.config.get_visible_devices("GPU")'),
    ],
    3: [
        ("return min", "yield from min"),
        ("return min", "return np.array(min", "(order)))", "(order))))"),
    ],
}

WRONG = {
    1: [
        ("0.25", "0.0", "not a quarter"),
        ("0.25", "25", "25 times the GPU"),
        ("True", "False", "at once: let it grow"),
        ("answer = tf1.GPUOptions(allow_growth=True, per_process_gpu_memory_fraction=0.25)",
         "not a GPUOptions"),
        ("= True", "= True\nanswer.gpu_options.visible_device_list = '0'",
         "sets visible_device_list"),
        ("= True", "= True\nanswer.device_count['GPU'] = 0", "sets device_count"),
    ],
    2: [
        ("in gpus[-2:]", "in gpus[-1:]", "no growth is set on"),
        ("(gpus[-2:]", "([]", "sees none"),
        (', "GPU"', "", "it hides the CPU"),
        ("(gpu, True)", "(gpu, True)\n        tf.config.set_logical_device_configuration(gpu, "
         "[tf.config.LogicalDeviceConfiguration(memory_limit=9)])", "takes the growth away"),
        ("(gpu, True)", "(gpu, True)\n    tf.config.list_logical_devices()",
         "it started TensorFlow"),
    ],
    3: [
        ("best_order = lambda tensors: tensors", "there is one that takes"),
        ("best_order = lambda tensors: tensors[:-1]", "the same sizes"),
        ("best_order = lambda tensors: [1] * len(tensors)", "the same sizes"),
        ("sum(regions", "max(regions", "there is one that takes"),
        ("permutations(tensors)", "[tensors[i:] + tensors[:i] for i in range(len(tensors))]",
         "there is one that takes"),
    ],
}
