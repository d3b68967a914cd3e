"""Answers to the exercises of lesson 02: right ones, and wrong ones with their hints."""

KEEPS_ALL = """
def train(step, steps):
    history = [step() for _ in range(steps)]
    return [loss for loss, tape in history], history
"""

KEEPS_UNTIL_THE_END = """
def train(step, steps):
    history = [step() for _ in range(steps)]
    return [float(loss) for loss, tape in history]
"""

WIDER = "wider = networks.jang(hidden=9600, width=0.25)\n"

RIGHT: dict[int, list[str]] = {}

WRONG = {
    1: [
        ("answer = tf1.ConfigProto()\nanswer.gpu_options.allow_growth = True", "not a quarter"),
        ("answer = tf1.ConfigProto(gpu_options=tf1.GPUOptions("
         "per_process_gpu_memory_fraction=25))",
         "25 times the card"),
        ("answer = tf1.ConfigProto(gpu_options=tf1.GPUOptions("
         "per_process_gpu_memory_fraction=0.25))",
         "at once: let it grow"),
        ("answer = plan", "not a Plan"),
    ],
    2: [
        (WIDER + "answer = count.fits(wider, 70_000_000)", "above the budget"),
        ("answer = 100", "room for more"),
        (WIDER + "answer = count.fits(wider, 60_000_000)", "Adam's two slots"),
        ("answer = 60_000_000", "far more than fits"),
        ("answer = None", "a number of examples"),
    ],
    3: [
        (KEEPS_ALL, "4 of 4 tapes were alive"),
        (KEEPS_UNTIL_THE_END, "3 of 4 tapes were alive"),
        ("def train(step, steps):\n    return sum(float(step()[0]) for _ in range(steps))",
         "as numbers"),
        ("def train(step, steps):\n    return [0.0] * steps", "called 0 times in 4 steps"),
        ("def train(step, steps):\n    for _ in range(steps):\n        step()",
         "the four losses in order"),
    ],
}
