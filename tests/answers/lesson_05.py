"""Answers to the exercises of lesson 05: right ones, and wrong ones with their hints."""

RIGHT = {
    1: [
        ("(gpus[-2:]", "([gpus[-1], gpus[-2]]",
         "in gpus[-2:]", 'in tf.config.get_visible_devices("GPU")'),
    ],
    2: ["limit_for = lambda total, overhead, n: total // n - overhead"],
}

WRONG = {
    1: [
        ("in gpus[-2:]", "in gpus[-1:]", "no growth is set on"),
        ("(gpus[-2:]", "([]", "sees none"),
        (', "GPU"', "", "it hides the CPU"),
        ("(gpu, True)", "(gpu, True)\n        tf.config.set_logical_device_configuration(gpu, "
         "[tf.config.LogicalDeviceConfiguration(memory_limit=9)])", "takes the growth away"),
        ("(gpu, True)", "(gpu, True)\n    tf.config.list_logical_devices()",
         "it started TensorFlow"),
    ],
    2: [("- overhead", "- overhead - 1", "fill the GPU as far as")],
}
