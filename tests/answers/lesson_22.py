"""Answers to the exercises of lesson 22: right ones, and wrong ones with their hints."""

RIGHT = {
    1: [
        "computed = lambda total, every, failures: np.int64("
        "total + sum(step % every for step in failures))",
    ],
    2: [("return worker", "return float(worker)")],
}

WRONG = {
    1: [
        ("for step in failures:", "while failures:\n        step = failures.pop(0)",
         "leave the list as it is"),
    ],
    2: [
        ("while ends[worker][2] is not None:\n        worker = ends[worker][2]",
         "for _ in range(2):\n        worker = worker if ends[worker][2] is None else "
         "ends[worker][2]", "of [("),
    ],
}
