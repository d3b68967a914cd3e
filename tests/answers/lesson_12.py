"""Answers to the exercises of lesson 12: right ones, and wrong ones with their hints."""

FIRST = (
    "fewest = lambda workload, cost, batch, seconds: next((n for n in range(1, {end}) if "
    "scaling.central(workload, cost, n, {batch}).total {sign} seconds), {none})"
)
LOOP = """
def fewest(workload, cost, global_batch, seconds):
    for n in range(1, 65):
        if scaling.central(workload, cost, n, global_batch / n).total <= seconds:
            return n
"""

RIGHT = {
    1: [
        "from fractions import Fraction\n"
        "share_of_peak = lambda *given: Fraction(np.prod([*given[:3], 1 / given[3]]) / given[4])",
        "share_of_peak = lambda f, examples, epochs, s, peak: f * examples * epochs / (s * peak)",
        """
def share_of_peak(flops, examples, epochs, seconds, peak):
    speed = flops * np.prod([examples, epochs], dtype=float) / seconds
    return np.float64(speed / peak)
""",
    ],
    2: [
        LOOP,
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
        ("share_of_peak = lambda f, examples, epochs, s, peak: f * examples / s / peak",
         "give 5, not 0.25"),
        ("share_of_peak = lambda f, n, epochs, s, peak: 100 * f * n * epochs / s / peak",
         "give 5, not 500"),
        ("share_of_peak = lambda f, n, epochs, s, peak: 3 * f * n * epochs / s / peak",
         "give 5, not 15"),
        ("share_of_peak = lambda f, n, epochs, s, peak: f * n * epochs / peak",
         "give 0.5, not 2"),
        ("share_of_peak = lambda f, n, epochs, s, peak: round(f * n * epochs / s / peak, 1)",
         "7 epochs"),
        ("share_of_peak = lambda f, n, epochs, s, peak: [f * n * epochs / s / peak]",
         "one number is wanted"),
        ("share_of_peak = lambda f, n, epochs, s, peak: f * n * epochs / s / peak > 4",
         "one number is wanted"),
    ],
    2: [
        ("fewest = lambda workload, cost, batch, seconds: next(n for n in range(1, 65) if "
         "scaling.central(workload, cost, n, batch).total <= seconds)",
         "it raises StopIteration"),
        ("fewest = lambda workload, cost, batch, seconds: min(range(1, 65), key=lambda n: "
         "scaling.central(workload, cost, n, batch / n).total)",
         "it is 1 device, not 11"),
        (FIRST.format(end=64, batch="batch / n", sign="<=", none=None), "it is 64 devices"),
        (FIRST.format(end=10_000, batch="batch / n", sign="<=", none=None),
         "it is no number of devices, not 65"),
        (FIRST.format(end=65, batch="batch / n", sign="<", none=None), "it is 5 devices"),
        (FIRST.format(end=65, batch="batch / n", sign="<=", none=64),
         "it is no number of devices, not 64"),
        (FIRST.format(end=65, batch="batch", sign="<=", none=None), "it is 3 devices, not None"),
        (LOOP.replace("central", "ring"), "ms it is"),
        (LOOP.replace("global_batch / n", "global_batch // n"), "ms it is"),
        (LOOP.replace("global_batch / n", "1024 / n"), "for a batch of"),
        (LOOP.replace("workload, cost, n", "scaling.Workload('a', 1_000_000, 1e8), cost, n"),
         "for a batch of"),
    ],
}
