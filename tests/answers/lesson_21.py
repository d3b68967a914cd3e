"""Answers to the exercises of lesson 21: right ones, and wrong ones with their hints."""

RIGHT = {
    1: [
        "rows_of = lambda count, workers, index: np.array_split(np.arange(count), workers)[index]",
        "rows_of = lambda n, k, i: (float(row) for row in range(n * i // k, n * (i + 1) // k))",
    ],
    2: [
        "from mgpu_helpers import scaling\n"
        "reduce_seconds = lambda size, workers, megabits, unlimited: "
        "scaling.ring(scaling.Workload('x', size // 4), scaling.Cost(0.0, 0.0), workers, 1, "
        "scaling.Link('y', *[megabits * 125e3] * 3, 0.0, 'z')).total / 0.956 + unlimited",
        "reduce_seconds = lambda size, n, rate, more: tf.constant("
        "(1 - 1 / n) * size / rate / 59750 + more)",
    ],
}

WRONG = {
    1: [
        ("range(index, count, workers)",
         "range(index * (count // workers), (index + 1) * (count // workers))",
         "nobody reads row 9"),
        ("range(index, count, workers)", "range(count)", "row 0 is read 2 times"),
        ("count, workers)\n", "count + 1, workers)\n", "row 24, which is not there"),
        ("range(index, count, workers)", "range(count) if index == 0 else []",
         "one reads 24 and another 0"),
        ("range(index, count, workers)", "[*range(index, count, workers), 0.5]",
         "whole, not 0.5"),
        ("def", "asked = iter(range(10**6))\n\n\ndef",
         "range(index,", "range(next(asked) % workers,", "from count, workers and index alone"),
    ],
    2: [("+ unlimited", "- unlimited", "0.016 s for copying and adding take 0.8528 s")],
}
