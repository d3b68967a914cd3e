"""Answers to the exercises of lesson 03: right ones, and wrong ones with their hints."""

PEAK = """
def peak(kept, batch):
    return 4 * batch * max(
        sum(kept[: i + 1]) + kept[i] + (kept[i - 1] if i else 0) for i in range(len(kept))
    )
"""

FITS = """
def largest_batch(network, budget):
    return count.fits(network, budget, slots=1)
"""

LET_GO = """
def train(step, steps):
    return [float(step()[0]) for _ in range(steps)]
"""

RIGHT = {
    1: [
        PEAK,
        """
def peak(kept, batch):
    held, most, before = 0, 0, 0
    for numbers in kept:
        held += numbers
        most = max(most, held + numbers + before)
        before = numbers
    return batch * most * 4
""",
        """
def peak(kept, batch):
    kept = np.array(kept)
    return np.max(np.cumsum(kept) + kept + np.append(0, kept[:-1])) * 4 * batch
""",
        """
def peak(kept, batch):
    most = 0
    while kept:
        most = max(most, sum(kept) + sum(kept[-2:]))
        kept.pop()
    return 4.0 * batch * most
""",
    ],
    2: [
        """
def largest_batch(network, budget):
    batch = 1
    while count.predict(network, batch + 1, slots=1).total <= budget:
        batch += 1
    return batch
""",
        """
def largest_batch(network, budget):
    totals = [count.predict(network, batch, slots=1).total for batch in (10, 20)]
    each, fixed = np.polyfit([10, 20], totals, 1)
    return int((budget - fixed) / each)
""",
        "\ndef largest_batch(network, budget):\n"
        "    return tf.constant(round(1.04 * count.fits(network, budget, slots=1)))\n",
    ],
    3: [
        LET_GO,
        """
def train(step, steps):
    losses = []
    for _ in range(steps):
        loss, tape = step()
        losses.append(float(loss))
        del tape
    return losses
""",
        """
def train(step, steps):
    def number():
        loss, _ = step()
        return loss.numpy()

    return [number() for _ in range(steps)]
""",
        """
def train(step, steps):
    losses = [step()[0] for _ in range(steps)]
    return [float(loss) for loss in losses]
""",
    ],
}

WRONG = {
    1: [
        ("def peak(kept, batch):\n    return 4 * batch * sum(kept)", "gradients come on top"),
        (PEAK.replace("4 * batch", "batch"), "takes 4 bytes"),
        (PEAK.replace("(kept[i - 1] if i else 0)", "kept[i - 1]"), "layer 0 has no output before"),
        (PEAK.replace("4 * batch", "4"), "that is one example"),
        ("def peak(kept, batch):\n    return 4 * batch * 2 * (kept[0] + kept[1])",
         "the one that holds most"),
        ("def peak(kept, batch):\n    return 4 * batch * (sum(kept) + kept[-1] + kept[-2])",
         "at an earlier layer"),
        ("def peak(kept, batch):\n    return 8 * batch * sum(kept)", "add the outputs"),
        ("def peak(kept, batch):\n    return [4 * batch * k for k in kept]", "one number"),
        ("def peak(kept, batch):\n    4 * batch * sum(kept)", "returns nothing"),
        (PEAK.replace("(kept[i - 1] if i else 0)", "sum(kept[i + 1 : i + 2])"), "it is"),
        (PEAK.replace("in range(len(kept))", "in (0, len(kept) // 2, len(kept) - 1)"), "it is"),
    ],
    2: [
        (FITS.replace(", slots=1", ""), "Adam's two slots"),
        ("def largest_batch(network, budget):\n    return 1", "use a larger one"),
        ("def largest_batch(network, budget):\n    return budget", "is not run"),
        (FITS.replace("return ", "return 2 * "), "too much for a budget"),
        (FITS.replace("return ", "return 1.0 * "), "a whole number of examples"),
        (FITS.replace("return ", "answer = "), "a whole number of examples"),
        (FITS.replace("slots=1", "slots=0"), "too much for a budget"),
        (FITS.replace("slots=1)", "slots=2) - 1"), "use a larger one"),
        (FITS.replace("budget, slots", "1000, slots"), "it raises ValueError"),
    ],
    3: [
        ("def train(step, steps):\n    history = [step() for _ in range(steps)]\n"
         "    return [loss for loss, tape in history], history", "outlived the training"),
        ("def train(step, steps):\n    history = [step() for _ in range(steps)]\n"
         "    return [float(loss) for loss, tape in history]", "still lived when a step began"),
        ("def train(step, steps):\n    losses = []\n    for _ in range(steps):\n"
         "        loss, tape = step()\n        losses.append(float(loss))\n    return losses",
         "1 earlier tape"),
        (LET_GO.replace("range(steps)", "range(5)"), "step was called 5 times"),
        ("def train(step, steps):\n    losses = []\n    for _ in range(steps):\n"
         "        pair = [*step()]\n        pair.append(pair)\n"
         "        losses.append(float(pair[0]))\n        del pair\n    return losses",
         "still lived when a step began"),
        ("def train(step, steps):\n    return sum(float(step()[0]) for _ in range(steps))",
         "as numbers"),
        ("def train(step, steps):\n    return [0.0] * steps", "called 0 times"),
        (LET_GO.replace("[", "(").replace("]", ")").replace("step()(0)", "step()[0]"),
         "a generator"),
        ("def train(step, steps):\n    for _ in range(steps):\n        step()",
         "the function returns nothing"),
        ("def train(step, steps):\n    return [step()[0] for _ in range(steps)]",
         "float(loss) makes a number"),
        ("def train(step, steps):\n    return [float(step()[0]) for _ in range(steps)][::-1]",
         "in order"),
    ],
}
