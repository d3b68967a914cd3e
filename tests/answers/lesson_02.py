"""Answers to the exercises of lesson 02: right ones, and wrong ones with their hints."""

PREPARE = """
def prepare(gpus):
    for gpu in gpus[-2:]:
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.set_visible_devices(gpus[-2:], "GPU")
"""

QUARTER = """
answer = tf1.ConfigProto()
answer.gpu_options.per_process_gpu_memory_fraction = 0.25
answer.gpu_options.allow_growth = True
"""

TRY_ALL = """
def best_order(tensors):
    import itertools

    return min(itertools.permutations(tensors), key=lambda order: sum(regions(order)))
"""

CELLS = ["def regions(tensors)"]

RIGHT = {
    1: [
        "answer = tf1.ConfigProto(gpu_options=tf1.GPUOptions("
        "allow_growth=True, per_process_gpu_memory_fraction=1 / 4))",
        """
options = tf1.GPUOptions()
options.allow_growth, options.per_process_gpu_memory_fraction = True, 0.25
answer = tf1.ConfigProto(gpu_options=options, allow_soft_placement=True)
""",
        QUARTER.replace("tf1.ConfigProto()", "plan.session_config()"),
    ],
    2: [
        PREPARE,
        """
def prepare(gpus):
    tf.config.set_visible_devices(gpus[len(gpus) - 2 :], "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
""",
        """
def prepare(gpus):
    *_, a, b = gpus
    tf.config.set_visible_devices([a, b], "GPU")
    tf.config.experimental.set_memory_growth(a, True)
    tf.config.experimental.set_memory_growth(b, True)
    return a, b
""",
        """
def prepare(gpus):
    tf.config.set_visible_devices([gpus[-1], gpus[-2]], "GPU")
    for gpu in tf.config.get_visible_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
""",
    ],
    3: [
        TRY_ALL,
        """
def best_order(tensors):
    import itertools

    best, least = tensors, sum(regions(tensors))
    for order in itertools.permutations(tensors):
        if sum(regions(order)) < least:
            best, least = list(order), sum(regions(order))
    return best
""",
        TRY_ALL.replace("return min", "yield from min"),
        TRY_ALL.replace("return min", "return np.array(min").replace("(order)))", "(order))))"),
    ],
}

WRONG = {
    1: [
        ("answer = tf1.ConfigProto()\nanswer.gpu_options.allow_growth = True", "not a quarter"),
        ("answer = tf1.ConfigProto(gpu_options=tf1.GPUOptions("
         "per_process_gpu_memory_fraction=25))",
         "25 times the GPU"),
        ("answer = tf1.ConfigProto(gpu_options=tf1.GPUOptions("
         "per_process_gpu_memory_fraction=0.25))",
         "at once: let it grow"),
        ("answer = plan", "not a Plan"),
        (QUARTER.replace("0.25", "-0.25"), "not a quarter"),
        ("answer = tf1.GPUOptions(allow_growth=True, per_process_gpu_memory_fraction=0.25)",
         "not a GPUOptions"),
        (QUARTER + "answer.gpu_options.visible_device_list = '0'", "sets visible_device_list"),
        (QUARTER + "answer.gpu_options.experimental.virtual_devices.add(memory_limit_mb=[1024])",
         "sets experimental"),
        (QUARTER + "answer.device_count['GPU'] = 0", "sets device_count"),
        (QUARTER.replace("tf1.ConfigProto()", "plan.session_config()")
         + "answer.device_count['CPU'] = 1", "sets device_count"),
    ],
    2: [
        ("def prepare(gpus):\n    tf.config.set_visible_devices(gpus[-2:], 'GPU')",
         "no growth is set on"),
        (PREPARE.replace("in gpus[-2:]", "in gpus[-1:]"), "no growth is set on"),
        (PREPARE.replace("(gpus[-2:]", "(gpus[1:]"), "it should see"),
        (PREPARE.replace("(gpus[-2:]", "([]"), "sees none"),
        (PREPARE.replace("    tf.config.set_v", "    # tf.config.set_v"), "it should see"),
        (PREPARE.replace("gpus[-2:]", "gpus[-2]"), "it raises"),
        (PREPARE + "    tf.config.set_logical_device_configuration("
         "gpus[-1], [tf.config.LogicalDeviceConfiguration(memory_limit=1024)])",
         "a limit takes the growth away"),
        (PREPARE.replace(', "GPU"', ""), "it hides the CPU"),
        (PREPARE + "    tf.config.set_visible_devices([], 'CPU')", "it hides the CPU"),
        ("def prepare(gpus):\n    first = {2: 0, 3: 1, 5: 3}[len(gpus)]"
         + PREPARE.partition(":")[2].replace("[-2:]", "[first:]"), "it raises KeyError"),
        (PREPARE.replace("    for", "    tf.ones([])\n    for"), "it raises"),
        (PREPARE + "    tf.config.list_logical_devices()", "it started TensorFlow"),
    ],
    3: [
        ("def best_order(tensors):\n    return tensors", "there is one that takes"),
        ("def best_order(tensors):\n    return sorted(tensors)", "there is one that takes"),
        ("def best_order(tensors):\n    return sorted(tensors, reverse=True)",
         "there is one that takes"),
        ("def best_order(tensors):\n    return tensors[:-1]", "the same sizes"),
        ("def best_order(tensors):\n    return [1] * len(tensors)", "the same sizes"),
        ("def best_order(tensors):\n    return sum(tensors)", "the same sizes"),
        ("def best_order(tensors):\n    tensors.sort()", "returns nothing"),
        (TRY_ALL.replace("sum(regions", "max(regions"), "there is one that takes"),
        (TRY_ALL.replace("sum(regions", "len(regions"), "there is one that takes"),
        ("def best_order(tensors):\n    a, n = sorted(tensors), len(tensors)\n"
         "    turned = [a[i:] + a[:i] for i in range(n)]\n"
         "    turned += [each[::-1] for each in turned]\n"
         "    return min(turned, key=lambda order: sum(regions(order)))",
         "there is one that takes"),
    ],
}
