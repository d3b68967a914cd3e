"""Answers to the exercises of lesson 10: right ones, and wrong ones with their hints."""

LOOP = """
def accumulate(gradient_of, pieces):
    size = sum(len(x) for x, y in pieces)
    total = 0.0
    for x, y in pieces:
        gradient = gradient_of(x, y)
        part = gradient * (len(x) / size)
        total = total + part
    return total
"""

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
        LOOP,
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

WRONG = {
    1: [
        ("two_at_most = pipeline.one_by_one", "as long as one piece after the other"),
        ("two_at_most = pipeline.all_forward", "stage 0 holds 3 pieces"),
        ("two_at_most = pipeline.one_forward_one_backward", "stage 0 holds 3 pieces"),
        ("two_at_most = lambda stages, pieces: pipeline.one_by_one(pieces, stages)",
         "an order for 3 stages and 2 pieces"),
        ("two_at_most = lambda stages, pieces: [['F0', 'F1', 'F2', 'B0', 'B1', 'B2'],"
         "['F0', 'B1', 'F1', 'B0', 'F2', 'B2']]",
         "with 2 stages and 3 pieces, stage 1 cannot do B1"),
        ("two_at_most = lambda stages, pieces: 'F0 B0'", "give each stage a list"),
    ],
    2: [
        ("accumulate = lambda f, pieces: tf.add_n([f(x, y) for x, y in pieces])",
         "and not divided"),
        ("accumulate = lambda f, pieces: tf.add_n([f(x, y) for x, y in pieces]) / len(pieces)",
         "weigh each by its size"),
        ("accumulate = lambda f, pieces: f(*pieces[-1])", "only the last piece"),
        (LOOP.replace("len(x) / size", "len(x) / 26"), "should give"),
        ("""
def accumulate(gradient_of, pieces):
    size = sum(len(x) for x, y in pieces)
    return tf.add_n([gradient_of(x, y) * (len(x) / size) for x, y in pieces])
""", "10 of 10 gradients were held at once"),
        ("""
def accumulate(gradient_of, pieces):
    size = sum(len(x) for x, y in pieces)
    return sum([gradient_of(x, y).numpy() * (len(x) / size) for x, y in pieces])
""", "gradients were held at once"),
        ("""
def accumulate(gradient_of, pieces):
    size = sum(len(x) for x, y in pieces)
    kept = [tf.Variable(gradient_of(x, y) * (len(x) / size)) for x, y in pieces]
    return sum(variable.read_value() for variable in kept)
""", "of 10 gradients were held at once: add"),
        ("""
def accumulate(gradient_of, pieces):
    size = sum(len(x) for x, y in pieces)
    kept = tf.zeros([0])
    for x, y in pieces:
        kept = tf.concat([kept, gradient_of(x, y) * (len(x) / size)], 0)
    return tf.reduce_sum(tf.reshape(kept, [len(pieces), -1]), 0)
""", "of 10 gradients were held at once: add"),
        ("accumulate = lambda f, pieces: f(*(tf.concat(e, 0) for e in zip(*pieces)))",
         "examples: a piece has 4 at most"),
        ("accumulate = lambda f, pieces: [f(x, y) for x, y in pieces]", "one gradient like"),
        (LOOP.replace("def", "@tf.function\ndef"), "leave it out"),
    ],
}
