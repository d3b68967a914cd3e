"""Answers to the exercises of lesson 18: right ones, and wrong ones with their hints."""

RIGHT = {
    1: [
        """
def saves(tf_config):
    if tf_config is None:
        return np.True_
    cluster, task = json.loads(tf_config).values()
    cluster, task = (cluster, task) if "index" in task else (task, cluster)
    if task["type"] == "chief":
        return True
    return (task["type"], task["index"], "chief" in cluster) == ("worker", 0, False)
""",
        ("return", "first = min(config['cluster'], default='worker')\n    kind = first if first "
         "== 'chief' else 'worker'\n    return"),
    ],
    2: [
        """
def computed(total, every, failures):
    kept = [0, *(step - step % every for step in failures)]
    return sum(end - begin for begin, end in zip(kept, [*failures, total]))
""",
        "computed = lambda total, every, failures: np.int64("
        "total + sum(step % every for step in failures))",
    ],
    3: [
        """
def first(ends):
    def before(worker):
        return worker if ends[worker][2] is None else before(ends[worker][2])
    return before(min((end[0], i) for i, end in enumerate(ends) if end[1])[1])
""",
        ("return worker", "return float(worker)"),
    ],
}

WRONG = {
    1: [
        ("return", "return config['task']['index'] == 0 or",
         "worker 0 of a cluster with 1 chief"),
        ("return", "return True or", "worker 1 of a cluster with 2 workers must"),
        ('"chief" if "chief" in config["cluster"] else ', "", "chief 0 of a cluster"),
        ("return", "return tf_config is not None and", "a process without TF_CONFIG saves"),
        ('in config["cluster"]', "in (tf_config or '')", "host is called chief.example, saves"),
        ("return ", "config['task']['index'] %= 10\n    return ",
         "worker 10 of a cluster with 12 workers must not"),
    ],
    2: [
        ("in failures", "in failures[:1]", "not only one"),
        ("return done + total - kept", "return total + sum(step % every or every for step in "
         "failures)", "right after a backup repeats nothing"),
        ("in failures", "in sorted(set(failures))", "at the same step as the one before"),
        ("for step in failures:", "while failures:\n        step = failures.pop(0)",
         "leave the list as it is"),
    ],
    3: [
        ("if status != 0]", "]", "while", "while False and", "was done"),
        ("while", "while False and", "the earliest to fail may have lost another"),
        ("while", "if", "may have lost another itself"),
        ("[2] is not None", "[2]", "the earliest to fail may have lost another"),
        ("return worker", "return min(((end[0], i) for i, end in enumerate(ends) if end[1] and "
         "end[2] is None), default=(0, worker))[1]", "names no other may have been ended"),
        ("return worker", "return min(range(len(ends)), key=lambda i: ends[i][1])",
         "by a signal, too"),
        ("return worker", "return ends[worker]", "the number of a worker"),
        ("if status != 0]", "if status > 0]", "below 0 is a failure, too"),
        ("[2] is not None", "[2] is not None and ends[ends[worker][2]][1]",
         "may have ended with status 0"),
        ("min(failed, key=lambda index: ends[index][0])", "failed[0]", "not with the first in the"),
        ("while ends[worker][2] is not None:\n        worker = ends[worker][2]",
         "for _ in range(2):\n        worker = worker if ends[worker][2] is None else "
         "ends[worker][2]", "of [("),
    ],
}
