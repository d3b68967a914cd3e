"""Answers to the exercises of lesson 09: right ones, and wrong ones with their hints."""

RIGHT: dict[int, list[str]] = {}

WRONG = {
    1: [
        ("starts = ['conv3']", "part 1 holds"),
        ("starts = ['output']", "part 1 holds"),
        ("starts = 'conv2'", "one name in a list"),
        ("starts = ['conv2', 'fc1']", "one name in a list"),
        ("starts = ['pool']", "no layer 'pool'"),
    ],
    2: [
        ("two_at_most = pipeline.one_by_one", "as long as one piece after the other"),
        ("two_at_most = pipeline.all_forward", "stage 0 holds 3 pieces"),
        ("two_at_most = lambda stages, pieces: pipeline.one_by_one(pieces, stages)",
         "a schedule for 3"),
        ("two_at_most = lambda stages, pieces: [['F0', 'F1', 'F2', 'B0', 'B1', 'B2'],"
         "['F0', 'B1', 'F1', 'B0', 'F2', 'B2']]",
         "it raises ValueError: stage 1 cannot do B1"),
    ],
    3: [
        ("accumulate = lambda f, pieces: tf.add_n([f(x, y) for x, y in pieces])",
         "and not divided"),
        ("accumulate = lambda f, pieces: f(*pieces[-1])", "only the last piece"),
        ("accumulate = lambda f, pieces: tf.add_n([f(x, y) * len(x) / 16 for x, y in pieces])",
         "6 gradients were held at once"),
        ("accumulate = lambda f, pieces: f(*(tf.concat(e, 0) for e in zip(*pieces)))",
         "one call had 16 examples"),
        ("accumulate = lambda f, pieces: [f(x, y) for x, y in pieces]", "one gradient like"),
    ],
}
