"""Answers to the exercises of lesson 14: right ones, and wrong ones with their hints."""

OVER = """
def replay_over(ops, link):
    ends, free = {{}}, {{}}
    for name, (device, seconds, needs) in ops.items():
        ready = {ready}
        start = {start}
        ends[name] = free[device] = start + seconds
    return {result}
"""
READY = "[ends[n] + (0 if ops[n][0] == device else link) for n in needs]"
START = "max([free.get(device, 0), *ready])"
END = "max(ends.values())"


def over(ready=READY, start=START, result=END):
    return OVER.format(ready=ready, start=start, result=result)


PASS = """
causes = {causes}


def treat(model, data):
    step = towers.train_step(model, {optimizer}, model.loss, plan.devices)
    {ready}

    def one_pass():
        for x, y in ready:
            {each}

    return one_pass
"""


def treat(causes="{1, 2, 6}", optimizer="model.optimizer", ready="ready = data.cache()",
          each="step(x, y)"):  # fmt: skip
    return PASS.format(causes=causes, optimizer=optimizer, ready=ready, each=each)


OWN = """
causes = {{1, 2, 6}}


def treat(model, data):
    weights, ready = model.trainable_variables, list(data)

    def tower(x, y):
        with tf.GradientTape() as tape:
            loss = model.loss(y, model(x, training=True))
        return tape.gradient(loss, weights)

    {graph}
    def step(x, y):
        shards = [towers.split(part, len(plan)) for part in (x, y)]
        mean = towers.average(towers.run(tower, plan.devices, *shards), device=plan.devices[0])
        with tf.device(plan.devices[0]):
            model.optimizer.apply(mean, weights)

    def one_pass():
        for x, y in ready:
            step(x, y)

    return one_pass
"""
FIT = """
causes = {{1, 2, 6}}


def treat(model, data):
    {compiled}
    ready = {ready}
    return lambda: lesson_14.fit(model, ready)
"""
COMPILED = "model.compile(model.optimizer, model.loss)"

RIGHT = {
    1: [
        over(),
        """
def replay_over(ops, link):
    ends = {}
    for name, (device, seconds, needs) in ops.items():
        before = [n for n in ends if ops[n][0] == device]
        come = [ends[n] + link for n in needs if ops[n][0] != device]
        ends[name] = seconds + max([0, *come, *(ends[n] for n in before)])
    return float(max(ends.values()))
""",
        """
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
""",
    ],
    2: [
        treat(causes="[6, 2, 1]", ready="ready = list(data)"),
        OWN.format(graph="@tf.function"),
    ],
}

WRONG = {
    1: [
        (over(ready="[ends[n] for n in needs]"), "nothing takes time to cross"),
        (over(ready="[ends[n] + link for n in needs]"), "only what another device made"),
        (over(start="max([0, *ready])"), "yours gives"),
        (over(ready="[ends[n] for n in needs]", start="max([free.get(device, 0), *ready])"
              " + link * any(ops[n][0] != device for n in needs)"), "and b; yours gives 8 s"),
        (over(ready="[ends[n] + link * (ops[n][0] != device)"
                    " for n in sorted(needs, key=ends.get)[-1:]]"), "takes 5 s"),
        (over(result="ends[name]"), "yours gives 2 s"),
        (over(result="ends"), "type dict"),
        (over(result="sum(s for _, s, _ in ops.values())"), "yours gives 17 s"),
        (over(result="ops.popitem() and 15"), "it changes the operations"),
    ],
    2: [
        (treat(causes="{1, 2}"), "2 of the three causes are named: compare the time of a step"),
        (treat(causes="{6}"), "1 of the three causes is named"),
        (treat(causes="{1, 6}"), "time a pass over the data alone"),
        (treat(causes="{2, 6, 9}"), "look at which devices worked"),
        (treat(causes="{1, 2, 6, 9}"), "patient 9 has another"),
        (treat(causes="{0, 1, 2}"), "0 is none of them"),
        (treat(causes="'126'"), "numbers of patients"),
        ("causes = {1, 2, 6}\ntreat = lambda model, data: None", "return a function"),
        (treat(each="pass"), "stay as they are"),
        (treat(ready="ready = data.take(3)"), "the weights are not those"),
        (treat(optimizer="'sgd'"), "the weights are not those"),
        (treat(ready="ready = list(data)", each="step(*ready[0])"), "the weights are not those"),
        (treat(ready="ready = list(data)", each="left and step(*left.pop())").replace(
            "    def one_pass", "    left = ready[::-1]\n\n    def one_pass"), "stay as they are"),
        ("""
causes = {1, 2, 6}


def treat(model, data):
    start = model.get_weights()
    lesson_14.fit(model, data)
    end = model.get_weights()
    model.set_weights(start)
    return lambda: model.set_weights(end)
""", "the weights are not those"),
        (FIT.format(compiled="", ready="data"), "cause 1 is left: the model is never called on"),
        (FIT.format(compiled="", ready="data.cache()"), "cause 1 is left"),
        (FIT.format(compiled=COMPILED, ready="data.cache()"), "cause 1 is left"),
        (treat(ready="ready = data"), "cause 2 is left: a later pass reads 4 of its 4 batches"),
        (OWN.format(graph=""), "cause 6 is left: in a pass Python calls the model"),
    ],
}  # fmt: skip
