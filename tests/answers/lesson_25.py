"""Answers to the exercises of lesson 25: right ones, and wrong ones with their hints."""

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

WRONG = {}
