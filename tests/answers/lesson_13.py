"""Answers to the exercises of lesson 13: right ones, and wrong ones with their hints."""

FIRST = """first = "chief" if "chief" in config["cluster"] else "worker"
    return task["type"] == first and int(task["index"]) == 0"""
SAVES = """
def saves(tf_config):
    if tf_config is None:
        return {alone}
    config = json.loads(tf_config)
    task = config["task"]
    {rule}
"""
RING = "step_seconds = lambda size, workers, megabits, unlimited: {}"

RIGHT = {
    1: [
        "rows_of = lambda count, workers, index: list(range(count))[index::workers]",
        """
def rows_of(count, workers, index):
    return np.array_split(np.arange(count), workers)[index]
""",
        """
def rows_of(count, workers, index):
    return set(np.random.default_rng(count).permutation(count)[index::workers])
""",
        "rows_of = lambda n, k, i: (float(row) for row in range(n * i // k, n * (i + 1) // k))",
    ],
    2: [
        RING.format("2 * (workers - 1) / workers * size * 8 / megabits / 956e3 + unlimited"),
        """
def step_seconds(size, workers, megabits, unlimited):
    bytes_a_second = 0.956 * megabits * 1e6 / 8
    pieces = 2 * (workers - 1)
    return np.float64(unlimited + pieces * (size / workers) / bytes_a_second)
""",
        RING.format(
            "scaling.ring(scaling.Workload('x', size // 4), scaling.Cost(0.0, 0.0), workers, 1, "
            "scaling.Link('y', *[megabits * 125e3] * 3, 0.0, 'z')).total / 0.956 + unlimited"
        ),
        RING.format("tf.constant((1 - 1 / workers) * size / megabits / 59750 + unlimited)"),
    ],
    3: [
        SAVES.format(alone="True", rule=FIRST),
        SAVES.format(alone="np.True_", rule="""first = min(config["cluster"])
    return np.bool_(task == {"index": 0, "type": first if first == "chief" else "worker"})"""),
        SAVES.format(alone="True", rule="""if task["type"] == "chief":
        return True
    return (task["type"], task["index"], "chief" in config["cluster"]) == ("worker", 0, False)"""),
    ],
}  # fmt: skip

WRONG = {
    1: [
        ("""
def rows_of(count, workers, index):
    size = count // workers
    return range(index * size, (index + 1) * size)
""", "nobody reads row 9"),
        ("rows_of = lambda count, workers, index: range(count)", "row 0 is read 2 times"),
        ("rows_of = lambda count, workers, index: range(index, count + 1, workers)",
         "row 24, which is not there"),
        ("rows_of = lambda count, workers, index: range(index + 1, count, workers)",
         "nobody reads row 0"),
        ("rows_of = lambda count, workers, index: range(count) if index == 0 else []",
         "one reads 24 and another 0"),
        ("""
def rows_of(count, workers, index):
    size = count // workers
    return range(index * size, count if index == workers - 1 else (index + 1) * size)
""", "differ by one row at most"),
        ("rows_of = lambda count, workers, index: index", "type int"),
        ("rows_of = lambda count, workers, index: np.arange(count).reshape(-1, 1)[index::workers]",
         "flat list"),
        ("rows_of = lambda count, workers, index: [*range(index, count, workers), 0.5]",
         "whole, not 0.5"),
        ("rows_of = lambda count, workers, index: [*range(index, count, workers), np.nan]",
         "whole, not nan"),
        ("""
asked = iter(range(10**6))
def rows_of(count, workers, index):
    return range(next(asked) % workers, count, workers)
""", "from count, workers and index alone"),
        ("""
import itertools
rows_of = lambda count, workers, index: itertools.count(index, workers)
""", "row 24, which is not there"),
    ],
    2: [
        (RING.format("2 * (workers - 1) * size * 8 / (megabits * 1e6) / 0.956 + unlimited"),
         "not 2(n - 1) times all"),
        (RING.format("2 * (workers - 1) / workers * size / (megabits * 1e6) / 0.956 + unlimited"),
         "a byte has 8 bits"),
        (RING.format("2 * (workers - 1) / workers * size * 8 / (megabits * 1e6) + unlimited"),
         "95.6 %"),
        (RING.format("2 * (workers - 1) / workers * size * 8 / (megabits * 1e6) / 0.956"),
         "comes on top"),
        (RING.format("size * 8 / (megabits * 1e6) / 0.956 + unlimited"), "3 workers"),
        (RING.format("2 * (workers - 1) / workers * size * 8 / megabits / 1e3 / 0.956 + unlimited"),
         "return seconds"),
        (RING.format("(workers - 1) / workers * size * 8 / (megabits * 1e6) / 0.956 + unlimited"),
         "goes round twice"),
        (RING.format("((1 - 1 / workers) * size * 16 / (megabits * 1e6) + unlimited) / 0.956"),
         "as it was measured"),
        (RING.format("size * 8 / (megabits * 1e6) / 0.956 * (workers - 1) + unlimited"),
         "3 workers"),
        (RING.format("[size, workers]"), "return a number of seconds"),
        (RING.format("complex(size)"), "return a number of seconds"),
        (RING.format("(1 - 1 / workers) * size * 16 / (megabits * 2**20) / 0.956 + unlimited"),
         "a megabit is a million bits"),
    ],
    3: [
        (SAVES.format(alone="False", rule="return task['type'] == 'chief' or task['index'] == 0"),
         "worker 0 of a cluster with 1 chief"),
        (SAVES.format(alone="True", rule="return True"),
         "worker 1 of a cluster with 2 workers must"),
        (SAVES.format(alone="True", rule="return task['type'] == 'chief'"),
         "worker 0 of a cluster with 2 workers saves"),
        (SAVES.format(alone="True", rule="return task['index'] == 0 and task['type'] == 'worker'"),
         "chief 0 of a cluster"),
        (SAVES.format(alone="False", rule=FIRST),
         "a process without TF_CONFIG saves"),
        (SAVES.format(alone="True", rule="return config['cluster']['worker'][0]"),
         "return True or False"),
        ("saves = lambda tf_config: json.loads(tf_config)['task']['index'] == 0",
         "worker 0 of a cluster with 1 chief"),
        (SAVES.format(alone="True", rule="""first = "chief" if "chief" in tf_config else "worker"
    return task == {"type": first, "index": 0}"""),
         "host is called chief.example, saves"),
        (SAVES.format(alone="True", rule="""hosts = config["cluster"].get(task["type"], [""])
    return hosts[task["index"]].startswith("host0:")"""),
         "worker 0 of a cluster with 2 workers saves"),
        (SAVES.format(alone="True", rule=FIRST.replace("== 0", "% 10 == 0")),
         "worker 10 of a cluster with 12 workers must not"),
        (SAVES.format(alone="True", rule=FIRST.replace('"chief" in config["cluster"]',
         'len(config["cluster"]) > 2')), "chief 0 of a cluster with 1 chief, 1 worker saves"),
        ("""
def saves(tf_config):
    text = "".join((tf_config or "").split())
    first = "chief" if '"chief":' in text else "worker"
    return tf_config is None or text.endswith('"index":0,"type":"%s"}}' % first)
""", "worker 0 of a cluster with 2 workers saves"),
        ("""
def saves(tf_config):
    first = "chief" if '"chief"' in (tf_config or "") else "worker"
    return tf_config is None or tf_config.endswith('"type": "%s", "index": 0}}' % first)
""", "worker 0 of a cluster with 2 workers saves"),
    ],
}  # fmt: skip
