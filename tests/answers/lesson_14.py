"""Answers to the exercises of lesson 14: right ones, and wrong ones with their hints."""

RIGHT = {
    1: [
        """
def two_at_most(stages, pieces):
    tasks = []
    for k in range(0, pieces, 2):
        pair = range(k, min(k + 2, pieces))
        tasks += [f"F{i}" for i in pair] + [f"B{i}" for i in pair]
    return [tasks] * stages
""",
        """
def two_at_most(stages, pieces):
    ahead = [f"F{k}" for k in range(pieces)]
    back = [f"B{k}" for k in range(pieces)]
    order = []
    for stage in range(stages):
        lead = 1 if stage == stages - 1 else 2
        tasks = ahead[:lead]
        for b, f in zip(back, ahead[lead:] + [None] * pieces):
            tasks = tasks + ([b, f] if f else [b])
        order.append(tuple(tasks))
    return order
""",
    ],
    2: [
        """
def accumulate(gradient_of, pieces):
    total, count = None, 0
    for x, y in pieces:
        part = gradient_of(x, y).numpy() * len(x)
        total = part if total is None else total + part
        count += len(x)
    return total / count
""",
        """
def accumulate(gradient_of, pieces):
    mean, seen = 0.0, 0
    for x, y in pieces:
        seen += len(x)
        mean += (gradient_of(x, y) - mean) * (len(x) / seen)
    return mean
""",
    ],
}

MOST = "gradient_of(x, y) * (len(x) / size) for x, y in pieces"
HELD = "of 10 gradients were held at once: add"

WRONG = {
    1: [
        ("two_at_most = pipeline.one_by_one", "as long as one piece after the other"),
        ("two_at_most = pipeline.all_forward", "stage 0 holds 3 pieces"),
        ("two_at_most = lambda stages, pieces: pipeline.one_by_one(pieces, stages)",
         "an order for 3 stages and 2 pieces"),
        ('append(f"B{k}")', 'insert(0, f"B{k}")', "stage 0 cannot do B2"),
        ("two_at_most = lambda stages, pieces: 'F0 B0'", "give each stage a list"),
    ],
    2: [
        (" * (len(x) / size)", "", "and not divided"),
        ("len(x) / size", "1 / len(pieces)", "weigh each by its size"),
        ("accumulate = lambda f, pieces: f(*pieces[-1])", "only the last piece"),
        (f"sum({MOST})", f"sum([each.numpy() for each in [{MOST}]])", HELD),
        (f"sum({MOST})", f"sum([tf.Variable({MOST}][::-1])".replace(" for", ") for"), HELD),
        ("accumulate = lambda f, pieces: f(*(tf.concat(e, 0) for e in zip(*pieces)))",
         "examples: a piece has 4 at most"),
        ("def", "@tf.function\ndef", "leave it out"),
    ],
}
