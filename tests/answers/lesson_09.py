"""Answers to the exercises of lesson 09: right ones, and wrong ones with their hints."""

RIGHT = {
    1: ["""
import numpy as np

def peak(kept, batch):
    kept = np.array(kept)
    return np.max(np.cumsum(kept) + kept + np.append(0, kept[:-1])) * 4 * batch
"""],
    2: ["""
def train(step, steps):
    loss, worst = step()
    losses = [loss]
    while len(losses) < steps:
        loss, tape = step()
        if loss > max(losses):
            worst = tape
        losses.append(loss)
        tape = None
    return np.array(losses), worst
"""],
}

WRONG = {
    1: [("before[i]", "sum(kept[i + 1 : i + 2])", "add the outputs")],
    2: [
        ("def train(step, steps)", "def train(step, steps, every=[])",
         "losses.append(float(loss))", "losses.append(float(loss)); every.append(tape)",
         "outlived the training"),
        ("        del tape", "", "1 tape of smaller losses"),
        ("range(steps)", "range(5)", "step was called 5 times"),
        ("    return losses, worst", "    yield losses, worst", "a generator"),
        ("return losses, worst", "return losses", "return two things"),
        ("losses.append(float(loss))", "losses.append(loss)", "float(loss) makes a number"),
        ("return losses,", "return losses[::-1],", "in order"),
        ("== max(losses)", "== min(losses)", "counted from 0"),
    ],
}
