"""Answers to the exercises of lesson 11: right ones, and wrong ones with their hints."""

RIGHT = {
    1: [
        """
def efficiency(seconds, kind):
    if kind == "weak":
        return {n: seconds[1] / t for n, t in seconds.items()}
    return {n: seconds[1] / t / n for n, t in seconds.items()}
""",
        """
def efficiency(seconds, kind):
    found = {}
    for n in sorted(seconds):
        batch = 1 if kind == "strong" else n
        rate, alone = batch / seconds[n], 1 / seconds[1]
        found[n] = np.float64(rate / alone / n)
    return found
""",
    ],
    2: [
        """
def differ(a, b):
    ratios = sorted(x / y for x, y in zip(a, b))
    low, high = np.percentile(ratios, 25), np.percentile(ratios, 75)
    return not low <= 1 <= high
""",
        """
def differ(a, b):
    ends = np.quantile(np.array(b) / np.array(a), [0.25, 0.75])
    return bool(ends.min() > 1 or ends.max() < 1)
""",
        """
def differ(a, b):
    return timing.Comparison(timing.Timing(tuple(a)), timing.Timing(tuple(b))).distinguishable
""",
        """
def differ(a, b):
    low, high = np.quantile(np.log(a) - np.log(b), [0.25, 0.75])
    return low * high > 0
""",
    ],
}

WRONG = {
    1: [
        ("efficiency = lambda seconds, kind: {n: seconds[1] / t for n, t in seconds.items()}",
         "the efficiency on 2 is 0.8, not 1.6"),
        ("efficiency = lambda seconds, kind: {n: seconds[1] / n / t for n, t in seconds.items()}",
         "weak scaling"),
        ("efficiency = lambda seconds, kind: 1.0", "a dictionary is wanted"),
        ("efficiency = lambda seconds, kind: list(seconds.values())", "a dictionary is wanted"),
        ("efficiency = lambda seconds, kind: {n: [1.0] for n in seconds}",
         "the efficiency on 1 is 1, not [1.0]"),
        ("efficiency = lambda s, kind: {n: round(s[1] / t / (n if kind == 'strong' else 1), 3) "
         "for n, t in s.items()}",
         "is 0.518119, not 0.518"),
        ("efficiency = lambda s, kind: {n: s[1] / t / (n if kind == 'strong' else 1) "
         "for n, t in s.items() if n > 1}",
         "with the keys 1, 2, 4"),
        ("efficiency = lambda s, kind: {n: s[2] for n in s}", "the efficiency on 1 is 1, not 5.0"),
        ("efficiency = lambda s, kind: {n: s[1] / s.pop(n) for n in sorted(s, reverse=True)}",
         "it changes the dictionary"),
    ],
    2: [
        ("differ = lambda a, b: bool(np.median(a) != np.median(b))", "False is right, not True"),
        ("differ = lambda a, b: bool(np.quantile(a, 0.25) > np.quantile(b, 0.75) or "
         "np.quantile(b, 0.25) > np.quantile(a, 0.75))",
         "while the machine slows down: True is right"),
        ("differ = lambda a, b: bool(np.quantile(np.divide(a, b), 0.25) > 1)",
         "b takes 3 % more in every pair"),
        ("differ = lambda a, b: min(x / y for x, y in zip(a, b)) > 1 or "
         "max(x / y for x, y in zip(a, b)) < 1",
         "two of eight pairs are far off"),
        ("differ = lambda a, b: abs(np.mean(np.divide(a, b)) - 1) > 0.01",
         "but for two outliers of 3"),
        ("differ = lambda a, b: np.quantile(np.divide(a, b), [0.25, 0.75])",
         "True or False is wanted"),
        ("differ = lambda a, b: True", "False is right, not True"),
        ("differ = lambda a, b: timing.Comparison(timing.Timing(tuple(sorted(a))), "
         "timing.Timing(tuple(sorted(b)))).distinguishable",
         "3 % longer and in reverse"),
        ("""
def differ(a, b):
    a.sort()
    b.sort()
    return timing.Comparison(timing.Timing(tuple(a)), timing.Timing(tuple(b))).distinguishable
""",
         "it changes a list"),
        ("differ = lambda a, b: a > b", "True is right, not False"),
        ("""
def differ(a, b):
    low, high = np.quantile(np.divide(a, b), [0.2, 0.8])
    return low > 1 or high < 1
""",
         "the middle half of"),
        ("""
def differ(a, b):
    low, high = np.quantile(np.subtract(a, b), [0.25, 0.75])
    return low > 0 or high < 0
""",
         "the middle half of"),
        ("differ = lambda a, b: abs(np.mean(np.sign(np.subtract(a, b)))) > 0.3",
         "the middle half of"),
    ],
}
