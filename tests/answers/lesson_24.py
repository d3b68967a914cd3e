"""Answers to the exercises of lesson 24: right ones, and wrong ones with their hints."""

RIGHT = {
    1: [
        """
def tensors(called):
    count, before = 0, called[0]
    for device in called[1:]:
        if device != before:
            count += 2
        before = device
    return count
""",
        """
import itertools
def tensors(called):
    return 2 * (len(list(itertools.groupby(called))) - 1)
""",
    ],
    2: [
        """
def fetched(made, called, sizes):
    total = 0
    for i in range(len(sizes)):
        if made[i] != called[i]:
            total += sizes[i]
    return total
""",
        """
def fetched(made, called, sizes):
    return sum(size * (a != b) for size, a, b in zip(sizes, made, called))
""",
    ],
}

WRONG = {
    1: [
        ("2 * ", "", "a gradient comes back"),
    ],
    2: [
        ("a != b", "a == b", "the bytes that stay"),
    ],
}
