"""Answers to the exercises of lesson 20: right ones, and wrong ones with their hints."""

RIGHT = {
    1: ["""
from fractions import Fraction
def slowest(parameters, step, servers, efficiency):
    step, efficiency = Fraction(step), Fraction(efficiency)
    sent = Fraction(2 * (servers - 1), servers) * 4 * parameters
    return sent / (step * (1 - efficiency) / efficiency)
"""],
    2: [
        """
import math
def batches(parameters, step, bandwidth, gain):
    return math.ceil(4 * parameters / bandwidth / (2 * step / gain - step))
""",
        "batches = lambda p, step, bandwidth, gain: next("
        "n for n in range(1, 99) if 2 / (1 + 4 * p / bandwidth / (n * step)) >= gain)",
    ],
}

WRONG = {
    1: [(" * 4 *", " * 32 *", "want 4e+09 bytes a second, not 3.2e+10: the exchange")],
    2: [
        (" = 4 *", " =", "is 6, not 2"),
        ("/ bandwidth, 1", "/ bandwidth, 2", "is 1, not 2"),
        ("return count", "return 4 * parameters / bandwidth / step", "is 6, not 0.9786"),
    ],
}
