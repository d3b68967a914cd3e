"""Answers to the exercises of lesson 09: right ones, and wrong ones with their hints."""

RIGHT = {
    1: [
        """
import numpy as np

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
        "train = lambda step, steps: [float(step()[0]) for _ in range(steps)]",
        """
def train(step, steps):
    losses = [step()[0] for _ in range(steps)]
    return [float(loss) for loss in losses]
""",
    ],
}

WRONG = {
    1: [("before[i]", "sum(kept[i + 1 : i + 2])", "add the outputs")],
    2: [
        ("losses.append(float(loss))", "losses.append((loss, tape))", "outlived the training"),
        ("        del tape", "", "1 earlier tape"),
        ("range(steps)", "range(5)", "step was called 5 times"),
        ("def train(step, steps):\n    return (float(step()[0]) for _ in range(steps))",
         "a generator"),
        ("float(loss)", "loss", "float(loss) makes a number"),
        ("return losses", "return losses[::-1]", "in order"),
    ],
}
