"""Answers to the exercises of lesson 25: right ones, and wrong ones with their hints."""

RIGHT = {
    1: ["""
import re
def same(one, other):
    a, b = (re.search(r"(cpu|gpu):(\\d+)$", name.lower()).groups() for name in (one, other))
    return a == b
"""],
    2: ["""
def outside(shown, listed, name):
    number = name.split(":")[-1]
    for numbers in (listed, shown):
        number = numbers.split(",")[int(number)]
    return float(number)
"""],
}

WRONG = {}
