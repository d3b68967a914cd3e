"""Answers to the exercises of lesson 07: right ones, and wrong ones with their hints."""

ELSEWHERE = """
def half_the_bytes(vectors):
    with tf.device(plan.devices[0]):
        return tf.add_n(vectors) / len(vectors)
"""

WEIGHTED = """
def weighted_average(tower_gradients, sizes):
    return [
        tf.add_n([size / sum(sizes) * gradient for size, gradient in zip(sizes, each)])
        for each in zip(*tower_gradients)
    ]
"""

RIGHT: dict[int, list[str]] = {}

WRONG = {
    1: [
        (WEIGHTED.replace("/ sum(sizes)", ""), "divide the sizes by their sum"),
        (WEIGHTED.replace("size / sum(sizes) *", "len(sizes) *"), "not"),
        ("weighted_average = lambda towers, sizes: towers[0]", "should become 20"),
    ],
    2: [
        ("half_the_bytes = lambda v: tf.cast(tf.add_n(v), tf.float16)", "should be float32"),
        ("half_the_bytes = lambda vectors: vectors", "one vector of 1000"),
        ("half_the_bytes = lambda vectors: vectors[0][:500]", "one vector of 1000"),
        (ELSEWHERE, "should be made on /CPU:0"),
        ("half_the_bytes = lambda vectors: vectors[0]", "not right to 0.01"),
    ],
    3: [
        ("mask_seed = lambda step, tower: (step * tower, 1)", "has the seed of"),
        ("mask_seed = lambda step, tower: step", "two whole numbers"),
    ],
}
