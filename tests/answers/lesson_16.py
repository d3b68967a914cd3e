"""Answers to the exercises of lesson 16: right ones, and wrong ones with their hints."""

RIGHT = {
    1: [
        ("def", "import tensorflow as tf\n\n\ndef", "return int(visible.split(\",\")[inside])",
         "return tf.constant([int(n) for n in visible.split(',')])[inside]"),
    ],
    2: ["""
from collections import ChainMap

def environment(device):
    given = {"CUDA_VISIBLE_DEVICES": str(device), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return ChainMap(given, os.environ)
"""],
}

WRONG = {
    1: [
        ("visible.split(\",\")[inside]", "visible[2 * inside]", "/GPU:2 is 12"),
        ("device.rpartition(\":\")[2]", "device[-1]", "/GPU:11 is 10"),
        ("return ", "return [3, 4, 12, 5, 7, 1, 2, 6, 8, 9, 13, 10, 0, 11, 14][inside] or ",
         "with '"),
    ],
    2: [
        ("os.environ | {", "os.environ | {'PATH': '',", "rest of the environment is lost"),
        ("\"CUDA_DEVICE_ORDER\": \"PCI_BUS_ID\",", "", "set CUDA_DEVICE_ORDER"),
        ("str(device)", "device", "is not text"),
        ("def", "copy = dict(os.environ)\n\n\ndef", "return os.environ | {", "copy.update({",
         "    }", "    })\n    return copy", "make a copy each time"),
        ("str(device)", "','.join(map(str, range(device + 1)))",
         "the child sees CUDA_VISIBLE_DEVICES='0,1,2"),
        ("return os.environ | {", "os.environ.update({", "    }", "    })\n    return os.environ",
         "it changed this notebook's environment"),
    ],
}
