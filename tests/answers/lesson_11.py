"""Answers to the exercises of lesson 11: right ones, and wrong ones with their hints."""

CELLS = ["def owners"]  # the solution of 1 uses it

RIGHT = {
    1: ["""
def fullest_holds(sizes, n, stage):
    held = [0] * n
    for size in sorted(sizes)[::-1]:
        held[np.argmin(held)] += size
    whole = {0: 16, 1: 8, 2: 4, 3: 0}[stage]
    return np.float64(whole * sum(sizes) + (16 - whole) * max(held))
"""],
    2: ["""
def clipped(owned, limit):  # TensorFlow computes each square and each product where its input is
    every = [each for gradients in owned.values() for each in gradients]
    scaled = iter(tf.clip_by_global_norm(every, limit)[0])
    return {device: [next(scaled) for _ in owned[device]] for device in owned}
"""],
}

WRONG = {
    2: [
        ("tf.minimum(1.0, limit /", "tf.minimum(1e9, limit /", "scaled up"),
        ("tf.sqrt(tf.add_n(squares))", "tf.add_n([tf.sqrt(each) for each in squares])",
         "add their squares"),
        ("tf.sqrt(tf.add_n(squares))", "tf.sqrt(squares[0])", "norm of one device's"),
        ("tf.sqrt(tf.add_n(squares))", "tf.add_n(squares)", "take the root"),
        ("limit / tf.sqrt(tf.add_n(squares))", "1.0", "nothing is scaled"),
        ("each * factor for", "tf.clip_by_norm(each, limit) for", "by its own norm"),
        ("[each * factor for each in gradients]", "tf.clip_by_global_norm(gradients, limit)[0]",
         "its own gradients"),
        ("[each * factor for each in gradients]", "gradients[:1]", "a list of gradients"),
        ("    for device, gradients in owned.items():\n        with tf.device(device):\n"
         "            scaled", "    for device, gradients in owned.items():\n"
         "        with tf.device(plan.host):\n            scaled", "single numbers"),
    ],
}
