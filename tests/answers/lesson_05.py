"""Answers to the exercises of lesson 05: right ones, and wrong ones with their hints."""

ONE_BY_ONE = """
def trains(session, fetches, feed):
    weights = session.graph.get_collection("trainable_variables")
    before = [session.run(weight) for weight in weights]
    session.run([fetches], feed)
    after = [session.run(weight) for weight in weights]
    return any((a != b).any() for a, b in zip(before, after))
"""

ANY_VARIABLE = """
def trains(session, fetches, feed):
    variables = session.graph.get_collection("variables")
    before = session.run(variables)
    session.run(fetches, feed)
    return any(not np.array_equal(a, b) for a, b in zip(before, session.run(variables)))
"""

TRAINABLE = ANY_VARIABLE.replace('"variables"', '"trainable_variables"')

DEFAULT_GRAPH = """
def trains(session, fetches, feed):
    variables = tf1.trainable_variables()
    before = session.run(variables)
    session.run(fetches, feed)
    return any(not np.array_equal(a, b) for a, b in zip(before, session.run(variables)))
"""

LAST_TWO = """
def agreed(predicted):
    said = [array.argmax(axis=1) for array in predicted.values()]
    return np.where(said[-1] == said[0], said[0], -1)
"""

MEAN = """
def agreed(predicted):
    said = np.stack([array.argmax(axis=1) for array in predicted.values()])
    return np.where(said.mean(axis=0) == said[0], said[0], -1)
"""

EMPTIED = """
def agreed(predicted):
    said = np.stack([predicted.pop(name).argmax(axis=1) for name in list(predicted)])
    return np.where((said == said[0]).all(axis=0), said[0], -1)
"""

NAMED = """
def agreed(predicted):
    small, large, tiny = (predicted[name].argmax(axis=1) for name in ("small", "large", "tiny"))
    return np.where((small == large) & (large == tiny), small, -1)
"""

JOIN_EACH = """
def run_all(functions):
    results = [None] * len(functions)
    def call(i):
        results[i] = functions[i]()
    for i in range(len(functions)):
        thread = threading.Thread(target=call, args=[i])
        thread.start()
        thread.join()
    return results
"""

APPEND = """
def run_all(functions):
    results = []
    threads = [threading.Thread(target=lambda f=f: results.append(f())) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
"""

POOL = """
from concurrent.futures import ThreadPoolExecutor
def run_all(functions):
    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(lambda function: function(), functions))
"""

RIGHT = {
    1: [
        ONE_BY_ONE,
        """
def trains(session, fetches, feed):
    with session.graph.as_default():
        reads = [weight.read_value() for weight in tf1.trainable_variables()]
    def weights():
        return [value.tobytes() for value in session.run(reads)]
    before = weights()
    session.run(fetches, feed_dict=feed)
    return before != weights()
""",
    ],
    2: [
        """
def agreed(predicted):
    labels = []
    for rows in zip(*predicted.values()):
        said = {int(np.argmax(row)) for row in rows}
        labels.append(said.pop() if len(said) == 1 else -1)
    return labels
""",
        """
def agreed(predicted):
    said = np.array([np.argmax(array, 1) for array in predicted.values()])
    low, high = said.min(axis=0), said.max(axis=0)
    return np.where(low == high, low, -1.0)
""",
    ],
    3: [
        POOL,
        """
def run_all(functions):
    results = {}
    def call(function):
        results[function] = function()
    threads = [threading.Thread(target=call, args=[function]) for function in functions]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return map(results.get, functions)
""",
        """
def run_all(functions):
    results = {}
    def call(place, function):
        results[place] = function()
    threads = [threading.Thread(target=call, args=pair) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[place] for place in sorted(results)]
""",
    ],
}

WRONG = {
    1: [
        (ANY_VARIABLE, "moves no trainable variable, and it says True"),
        (TRAINABLE.replace("any(", "all("), "moves a weight, and it says False"),
        (TRAINABLE.replace("not np.array_equal(a, b)", "not np.allclose(a, b)"),
         "a millionth is a move"),
        (TRAINABLE.replace("not np.array_equal(a, b)", "a.sum() != b.sum()"),
         "moves a weight, and it says False"),
        (TRAINABLE.replace("not np.array_equal(a, b)", "np.linalg.norm(a) != np.linalg.norm(b)"),
         "moves a weight, and it says False"),
        (TRAINABLE.replace("zip(before,", "list(zip(before,").replace(
            "run(variables)))", "run(variables)))[1:2])"), "moves a weight, and it says False"),
        (TRAINABLE.replace("    session.run(", "    session.run(fetches, feed), session.run("),
         "run 2 times"),
        (TRAINABLE.replace("    session.run(fetches, feed)\n    return", "    after = session.run("
                           "[variables, fetches], feed)[0]\n    return")
         .replace("session.run(variables)))", "after))"), "moves a weight, and it says False"),
        (DEFAULT_GRAPH, "moves a weight, and it says False"),
        ("def trains(session, fetches, feed):\n    return False", "run 0 times"),
        ("def trains(session, fetches, feed):\n    return session.run(fetches, feed)",
         "return True or False"),
        ("def trains(session, fetches, feed):\n    session.run(fetches, feed)\n"
         "    return isinstance(fetches, list)", "only counters moved"),
    ],
    2: [
        ("def agreed(predicted):\n    n = len(next(iter(predicted.values())))\n"
         "    return -np.ones(n)", "and it gives -1"),
        ("def agreed(predicted):\n    return ensemble.mean(predicted)", "give no -1"),
        ("def agreed(predicted):\n    return [3, -1, 4]", "shape (3,)"),
        ("def agreed(predicted):\n    pass", "need as many labels"),
        (LAST_TWO, "do not agree"),
        (MEAN, "say [4, 3, 5, 4] do not agree"),
        (EMPTIED, "it changed the predictions"),
        (MEAN.replace("said.mean(", "np.median(said, "), "do not agree"),
        (NAMED, "it raises KeyError: 'small'"),
    ],
    3: [
        (JOIN_EACH, "start all, then join all"),
        (APPEND, "in the order of the functions, not ['result 4', 'result 2'"),
        (APPEND.replace("return results", "return sorted(results)"),
         "in the order of the functions, not ['result 0', 'result 1']"),
        (APPEND.replace("    for thread in threads:\n        thread.join()\n", ""),
         "and join them"),
        (POOL.replace("len(functions)", "5"), "start all, then join all"),
        (POOL.replace("len(functions)", ""), "start all, then join all"),
        (POOL.replace("        return list(", "        functions[:] = list(")
         + "        return functions", "it changed the list of functions"),
        (APPEND.replace("return results", "return len(results)"), "return a list of the 5 results"),
        (APPEND.replace("return results", "return []"), "5 results, not 0"),
        (POOL.replace("return list(", "list(") + "    return list(range(len(functions)))\n",
         "in the order of the functions, not [0, 1"),
        ("def run_all(functions):\n    return functions", "and join them"),
    ],
}  # fmt: skip
