"""Answers to the exercises of lesson 22: right ones, and wrong ones with their hints."""

RIGHT = {
    1: [
        """
def same(one, other):
    def short(name):
        return name.upper().rpartition("/")[2].removeprefix("DEVICE:")

    return short(one) == short(other)
""",
        """
import re
def same(one, other):
    a, b = (re.search(r"(cpu|gpu):(\\d+)$", name.lower()).groups() for name in (one, other))
    return a == b
""",
    ],
    2: [
        """
def outside(shown, listed, name):
    gpus = [int(each) for each in shown.split(",")]
    seen = [gpus[int(each)] for each in listed.split(",")]
    return seen[int(name.split(":")[-1])]
""",
        """
def outside(shown, listed, name):
    number = name.split(":")[-1]
    for numbers in (listed, shown):
        number = numbers.split(",")[int(number)]
    return float(number)
""",
    ],
}

WRONG = {
    1: [
        ("same = lambda one, other: None", "True or False"),
        ("(a.device_type, a.device_index) == (b.device_type, b.device_index)",
         "a.device_type == b.device_type", "compare the numbers"),
        ("(a.device_type, a.device_index) == (b.device_type, b.device_index)",
         "a.device_index == b.device_index", "compare the kinds"),
    ],
    2: [
        ("int(shown.split(\",\")[middle])", "shown.split(\",\")[middle]", "make it a number"),
        ("int(shown.split(\",\")[middle])", "middle", "counts among the GPUs"),
        ('name.rpartition(":")[2]', "name", "it raises ValueError"),
    ],
}
