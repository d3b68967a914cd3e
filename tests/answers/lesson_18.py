"""Answers to the exercises of lesson 18: right ones, and wrong ones with their hints."""

RIGHT = {
    1: ["""
def trains(model, step):
    before = [weight.numpy().tobytes() for weight in model.trainable_weights]
    step()
    return before != [weight.numpy().tobytes() for weight in model.trainable_weights]
"""],
    2: [
        """
def run_all(functions):
    results = [None] * len(functions)
    def call(i):
        try:
            results[i] = functions[i]()
        except Exception as error:
            results[i] = error
    threads = [threading.Thread(target=call, args=[i]) for i in range(len(functions))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return results
""",
        """
def run_all(functions):
    def kept(function):
        try:
            return function()
        except Exception as error:
            return error
    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(kept, functions))
""",
    ],
}

WRONG = {
    1: [
        ("[weight.numpy() for weight in model.trainable_variables]",
         "[*model.trainable_variables]", "a != b.numpy()", "a.numpy() != b.numpy()",
         "were the numbers copied before the step?"),
        ("trainable_variables", "weights", "which nobody trains, and it says True"),
        ("np.any(a != b.numpy())", "not np.allclose(a, b.numpy())", "by a millionth"),
        ("np.any(a != b.numpy())", "np.sum(a) != np.sum(b.numpy())", "change places"),
        ("np.any(a != b.numpy())", "np.all(a != b.numpy())", "one number of the last bias"),
        ("    step()", "    step(), step()", "called 2 times"),
        ("model.trainable_variables", "model.trainable_variables[-2:]", "of the first layer"),
        ("    return any(", "    pairs = list(zip(before, model.trainable_variables))\n"
         "    moved = any(np.any(a != b.numpy()) for a, b in pairs)\n"
         "    [b.assign(a) for a, b in pairs]\n    return moved or any(",
         "leave what the step made"),
        ("    return any(", "    return model.optimizer.iterations > 0 or any(", "return True or"),
    ],
    2: [
        ("call.exception() or call.result()", "None if call.exception() else call.result()",
         "that exception is wanted, not None"),
        ("[pool.submit(function) for function in functions]",
         "[pool.submit(function) for function in functions][::-1]",
         "in the order of the functions"),
        ("ThreadPoolExecutor(len(functions))", "ThreadPoolExecutor(1)", "start all, then join all"),
        ("call.exception() or call.result()", "call.exception() or call.result() or 'nothing'",
         "None is wanted, not 'nothing'"),
        ("    return [call.exception() or call.result() for call in calls]",
         "    results = []\n    for call in calls:\n        try:\n"
         "            results.append(call.result())\n        except ValueError as error:\n"
         "            results.append(error)\n    return results", "in its place of the list"),
        ("for call in calls]", "for call in calls if functions.clear() is None]",
         "it changed the list of functions"),
        ("    return [", "    return []  # [", "5 results, not 0"),
        ("call.exception() or call.result()", "call.exception()", "'result 0' is wanted, not None"),
        ("call.exception() or call.result()", "call", "the list holds futures"),
        ("    with", "    late = [lambda: function() for function in functions]\n    with",
         "pool.submit(function) for function in functions", "pool.submit(each) for each in late",
         "does a lambda look its function up when the loop has ended?"),
    ],
}
