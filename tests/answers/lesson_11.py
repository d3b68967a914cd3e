"""Answers to the exercises of lesson 11: right ones, and wrong ones with their hints."""

RIGHT: dict[int, list[str]] = {}

WRONG = {
    1: [
        ("efficiency = lambda seconds, scaling: {n: seconds[1] / t for n, t in seconds.items()}",
         "strong scaling"),
        ("efficiency = lambda seconds, scaling: 1.0", "strong scaling"),
    ],
    2: [
        ("share_of_peak = lambda f, examples, epochs, s, peak: f * examples / s / peak",
         "give 2.5, not 0.25"),
        ("share_of_peak = lambda f, n, epochs, s, peak: 100 * f * n * epochs / s / peak",
         "give 2.5, not 250"),
    ],
    3: [
        ("fewest = lambda workload, cost, batch, seconds: next(n for n in range(1, 65) if "
         "scaling.central(workload, cost, n, batch).total <= seconds)",
         "it raises StopIteration"),
        ("fewest = lambda workload, cost, batch, seconds: min(range(1, 65), key=lambda n: "
         "scaling.central(workload, cost, n, batch / n).total)",
         "it is 1 device, not 11"),
    ],
}
