"""Answers to the exercises of lesson 13: right ones, and wrong ones with their hints."""

RIGHT = {
    1: ["""
def two_at_most(stages, pieces):
    tasks = []
    for k in range(0, pieces, 2):
        pair = range(k, min(k + 2, pieces))
        tasks += [f"F{i}" for i in pair] + [f"B{i}" for i in pair]
    return [tasks] * stages
"""],
    2: ["""
def fewest(stages, batch, percent):
    least = -(-(stages - 1) * (100 - percent) // percent)
    return next((m for m in range(max(1, least), batch + 1) if batch % m == 0), 0)
"""],
}

WRONG = {
    1: [
        ("two_at_most = pipeline.one_by_one", "as long as one piece after the other"),
        ("two_at_most = pipeline.all_forward", "stage 0 holds 3 pieces"),
        ("two_at_most = lambda stages, pieces: pipeline.one_by_one(pieces, stages)",
         "an order for 3 stages and 2 pieces"),
        ('append(f"B{k}")', 'insert(0, f"B{k}")', "stage 0 cannot do B2"),
        ("two_at_most = lambda stages, pieces: 'F0 B0'", "give each stage a list"),
    ],
}
