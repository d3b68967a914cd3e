"""Answers to the exercises of lesson 02: right ones, and wrong ones with their hints."""

RIGHT = {
    1: ["""
def replay_over(ops, link):  # the rule itself: each device takes what is ready first
    ends, free, left = {}, {}, list(ops)
    while left:
        starts = {}
        for name in left:
            device, _, needs = ops[name]
            if all(n in ends for n in needs):
                come = [ends[n] + link * (ops[n][0] != device) for n in needs]
                starts[name] = max([0, free.get(device, 0), *come])
        name = min(starts, key=starts.get)
        ends[name] = free[ops[name][0]] = starts[name] + ops[name][1]
        left.remove(name)
    return tf.constant(max(ends.values()))
"""],
    2: [
        ("{1, 4, 5}", "[5, 4, 1]",
         "model.run_eagerly = False", "model.compile(model.optimizer, model.loss)"),
    ],
}

WRONG = {
    1: [
        (" + link * (ops[other][0] != device)", "", "*ready])",
         "*ready]) + link * any(ops[n][0] != device for n in needs)", "and b; yours gives 8 s"),
        ("max(ends.values())", "ends[name]", "yours gives 2 s"),
        ("return", "return ops.popitem() and", "it changes the operations"),
    ],
    2: [
        ("{1, 4, 5}", "{1, 4, 5, 8}", "cause 8 is none of them"),
        ("{1, 4, 5}", "{1, 4, 9}", "9 is none of them"),
        ("{1, 4, 5}", "{1, 4, 8}", "look at which devices worked"),
        ("data.cache()", "data", "cause 1 is left: a later pass reads 4 of its 4 batches"),
        (".cache()", ".take(2)", "the weights are not those"),
        ("    fit.use(model, plan)\n", "", "cause 5 is left"),
        ("    model.run_eagerly = False\n", "", "cause 4 is left: in a pass Python calls"),
    ],
}
