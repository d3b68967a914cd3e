"""Answers to the exercises of lesson 05: right ones, and wrong ones with their hints."""

ANY_VARIABLE = """
def trains(session, fetches, feed):
    names = [v.name for v in session.graph.get_collection("variables")]
    reads = [name.replace(":0", "/Read/ReadVariableOp:0") for name in names]
    before = session.run(reads)
    session.run(fetches, feed)
    return any(not np.array_equal(a, b) for a, b in zip(before, session.run(reads)))
"""

ALL_MOVED = ANY_VARIABLE.replace('"variables"', '"trainable_variables"').replace("any(", "all(")

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
    return np.where(said[-1] == said[-2], said[-1], -1)
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

RIGHT: dict[int, list[str]] = {}

WRONG = {
    1: [
        (ANY_VARIABLE, "only a counter moved"),
        (ALL_MOVED, "moves a weight, and it says False"),
        ("def trains(session, fetches, feed):\n    return False", "run 0 times"),
        (DEFAULT_GRAPH, "moves a weight, and it says False"),
    ],
    2: [
        ("def agreed(predicted):\n    return -np.ones(6)", "agree on"),
        ("def agreed(predicted):\n    return ensemble.mean(predicted)", "give no -1"),
        ("def agreed(predicted):\n    pass", "six labels"),
        (LAST_TWO, "agree on"),
    ],
    3: [
        (JOIN_EACH, "start all, then join all"),
        (APPEND, "in order, not [20, 10, 0]"),
        (APPEND.replace("    for thread in threads:\n        thread.join()\n", ""),
         "before the threads had ended"),
    ],
}
