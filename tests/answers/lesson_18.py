"""Answers to the exercises of lesson 18: right ones, and wrong ones with their hints."""

RIGHT = {
    1: [
        """
def computed(total, every, failures):
    kept = [0, *(step - step % every for step in failures)]
    return sum(end - begin for begin, end in zip(kept, [*failures, total]))
""",
        "computed = lambda total, every, failures: np.int64("
        "total + sum(step % every for step in failures))",
    ],
    2: [
        """
def first(ends):
    def before(worker):
        return worker if ends[worker][2] is None else before(ends[worker][2])
    return before(min((end[0], i) for i, end in enumerate(ends) if end[1])[1])
""",
        ("return worker", "return float(worker)"),
    ],
}

WRONG = {
    1: [
        ("in failures", "in failures[:1]", "not only one"),
        ("return done + total - kept", "return total + sum(step % every or every for step in "
         "failures)", "right after a backup repeats nothing"),
        ("in failures", "in sorted(set(failures))", "at the same step as the one before"),
        ("for step in failures:", "while failures:\n        step = failures.pop(0)",
         "leave the list as it is"),
    ],
    2: [
        ("if status != 0]", "]", "while", "while False and", "was done"),
        ("while", "while False and", "the earliest to fail may have lost another"),
        ("while", "if", "may have lost another itself"),
        ("[2] is not None", "[2]", "the earliest to fail may have lost another"),
        ("return worker", "return min(((end[0], i) for i, end in enumerate(ends) if end[1] and "
         "end[2] is None), default=(0, worker))[1]", "names no other may have been ended"),
        ("return worker", "return min(range(len(ends)), key=lambda i: ends[i][1])",
         "by a signal, too"),
        ("return worker", "return ends[worker]", "the number of a worker"),
        ("if status != 0]", "if status > 0]", "below 0 is a failure, too"),
        ("[2] is not None", "[2] is not None and ends[ends[worker][2]][1]",
         "may have ended with status 0"),
        ("min(failed, key=lambda index: ends[index][0])", "failed[0]", "not with the first in the"),
        ("while ends[worker][2] is not None:\n        worker = ends[worker][2]",
         "for _ in range(2):\n        worker = worker if ends[worker][2] is None else "
         "ends[worker][2]", "of [("),
    ],
}
