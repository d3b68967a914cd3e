"""Answers to the exercises of lesson 19: right ones, and wrong ones with their hints."""

RIGHT = {
    1: ["""
def efficiency(seconds, kind):
    found = {}
    for n in sorted(seconds):
        batch = 1 if kind == "strong" else n
        rate, alone = batch / seconds[n], 1 / seconds[1]
        found[n] = np.float64(rate / alone / n)
    return found
"""],
    2: [("np.divide(a, b)", "np.divide(b, a)")],
}

WRONG = {
    1: [
        ('n if kind == "strong" else 1', "1", "the efficiency on 2 is 0.8, not 1.6"),
        ('n if kind == "strong" else 1', "n", "weak scaling"),
        ("efficiency = lambda seconds, kind: 1.0", "a dictionary is wanted"),
        ("seconds[1] / (shared[n] * t)", "round(seconds[1] / (shared[n] * t), 3)",
         "is 0.518119, not 0.518"),
        ("    return", "    seconds[2] = 1.0\n    return", "it changes the dictionary"),
    ],
    2: [
        ("np.divide(a, b)", "np.subtract.outer(a, b).ravel() + 1", "slows down: True is"),
        (" or high < 1", "", "b takes 3 % more in every pair"),
        ("ratios[3], ratios[-4]", "ratios[0], ratios[-1]", "three of the pairs are far off"),
        ("ratios[3], ratios[-4]", "ratios[4], ratios[-5]", "four of the ratios are 0.9"),
        ("np.divide(a, b)", "np.divide(sorted(a), sorted(b))", "3 % longer and in reverse"),
        ("    ratios", "    a.sort()\n    ratios", "it changes a list"),
        ("    low, high = ratios[3], ratios[-4]\n    return low > 1 or high < 1",
         "    both = timing.Timing(tuple(a)), timing.Timing(tuple(b))\n"
         "    return timing.Comparison(*both).distinguishable", "unless it is rounded away"),
    ],
}
