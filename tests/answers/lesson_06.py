"""Answers to the exercises of lesson 06: right ones, and wrong ones with their hints."""

POOL = """
from concurrent.futures import ThreadPoolExecutor
def run_all(functions):
    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(lambda function: function(), functions))
"""

RIGHT = {
    1: [
        """
def trains(session, fetches, feed):
    weights = session.graph.get_collection("trainable_variables")
    before = [session.run(weight) for weight in weights]
    session.run([fetches], feed)
    after = [session.run(weight) for weight in weights]
    return any((a != b).any() for a, b in zip(before, after))
""",
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
from concurrent.futures import ThreadPoolExecutor
def run_all(functions):
    pool = ThreadPoolExecutor(len(functions))
    return [future.result() for future in [pool.submit(function) for function in functions]]
""",
    ],
}

WRONG = {
    1: [
        ("trainable_variables", "variables", "moves no trainable variable, and it says True"),
        ("not np.array_equal(a, b)", "not np.allclose(a, b)", "a millionth is a move"),
        ("not np.array_equal(a, b)", "np.linalg.norm(a) != np.linalg.norm(b)",
         "moves a weight, and it says False"),
        ("    session.run(fetches, feed)", "    [session.run(fetches, feed) for _ in range(2)]",
         "run 2 times"),
        ("    session.run(fetches, feed)", "    after = session.run([weights, fetches], feed)[0]",
         "session.run(weights)))", "after))", "fetch them in a run of their own"),
        ("return ", "return isinstance(fetches, list) or ", "only counters moved"),
    ],
    2: [
        ("    return", "    return -np.ones(len(said[0]))  #", "and it gives -1"),
        ("agreed = lambda predicted: ensemble.mean(predicted)", "give no -1"),
        ("(said == said[0]).all(axis=0)", "said[-1] == said[0]", "do not agree"),
        ("(said == said[0]).all(axis=0)", "said.mean(axis=0) == said[0]",
         "say [4, 3, 5, 4] do not agree"),
        ("array.argmax(axis=1) for array in predicted.values()",
         "predicted.pop(name).argmax(axis=1) for name in list(predicted)",
         "it changed the predictions"),
    ],
    3: [
        ("results = [None] * len(functions)", "results = []",
         "results[i] = functions[i]()", "results.append(functions[i]())",
         "in the order of the functions, not ['result "),
        ("        thread.join()", "        pass", "and join them"),
        ("        thread.join()", "        __import__('time').sleep(0.1)", "and join them"),
        (POOL.replace("len(functions)", "5"), "start all, then join all"),
        ("return results", "functions[:] = results\n    return results",
         "it changed the list of functions"),
        ("return results", "return []", "5 results, not 0"),
    ],
}
