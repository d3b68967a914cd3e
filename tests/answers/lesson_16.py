"""Answers to the exercises of lesson 16: right ones, and wrong ones with their hints."""

RIGHT = {
    1: [
        "from fractions import Fraction\n"
        "share_of_peak = lambda *given: Fraction(np.prod([*given[:3], 1 / given[3]]) / given[4])",
        "share_of_peak = lambda f, examples, epochs, s, peak: f * examples * epochs / (s * peak)",
    ],
    2: [
        """
def fewest(workload, cost, global_batch, seconds):
    for n in range(1, 65):
        if scaling.central(workload, cost, n, global_batch / n).total <= seconds:
            return n
""",
        """
def fewest(workload, cost, global_batch, seconds):
    counts = np.arange(1, 65)
    took = [scaling.central(workload, cost, int(n), global_batch / n).total for n in counts]
    enough = counts[np.array(took) <= seconds]
    return enough[0] if len(enough) else None
""",
    ],
}

WRONG = {
    1: [
        (" * epochs", "", "give 5, not 0.25"),
        ("return ", "return 100 * ", "give 5, not 500"),
        ("return ", "return 3 * ", "give 5, not 15"),
        (" / seconds", "", "give 0.5, not 2"),
        ("return flops * examples * epochs / seconds / peak",
         "return round(flops * examples * epochs / seconds / peak, 1)", "7 epochs"),
    ],
    2: [
        ("next((n for n in took if took[n] <= seconds), None)", "min(took, key=took.get)",
         "it is 1 device, not 11"),
        ("65", "10_000", "it is no number of devices, not 65"),
        ("<=", "<", "it is 5 devices"),
        ("None", "64", "it is no number of devices, not 64"),
        ("central", "ring", "ms it is"),
        ("global_batch / n", "1024 / n", "for a batch of"),
    ],
}
