"""Answers to the exercises of lesson 05: right ones, and wrong ones with their hints."""

RIGHT = {
    1: [
        """
def wall(seconds, n):
    waiting, running, now = list(seconds), [], 0
    while waiting or running:
        while waiting and len(running) < n:
            running.append(now + waiting.pop(0))
        now = min(running)
        running.remove(now)
    return now
""",
        ("def", "import numpy as np\n\n\ndef", "[0] * n", "np.zeros(n)",
         "free_at.index(min(free_at))", "free_at.argmin()"),
        """
import heapq


def wall(seconds, n):
    ends = []
    for length in seconds:
        begin = heapq.heappop(ends) if len(ends) == n else 0
        heapq.heappush(ends, begin + length)
    return max(ends)
""",
    ],
    2: [
        """
def again(names, rows):
    left = dict.fromkeys(names)
    for row in rows:
        left[row["name"]] = row["status"]
    return [name for name in names if left[name] != "done"]
""",
        """
def again(names, rows):
    def ended(name):
        return [row["status"] for row in rows if row["name"] == name]

    return list(filter(lambda name: ended(name)[-1:] != ["done"], names))
""",
        ("def", "import numpy as np\n\n\ndef", "return [", "return np.array([",
         '"done"]', '"done"])'),
        ("return [", "return tuple(", '"done"]', '"done")'),
    ],
}

WRONG = {
    1: [
        ("in seconds", "in sorted(seconds, reverse=True)", "the longest first"),
        ("in seconds", "in sorted(seconds)", "the shortest first"),
        ("in seconds", "in seconds[::-1]", "the last first"),
        ("free_at.index(min(free_at))", "0", "uses one device"),
        ("return max(free_at)", "return free_at[first]", "when the last job of the list ends"),
        ("return max", "return min", "when the first device has nothing left"),
        ("return max(free_at)", "return max(seconds)", "the longest job alone"),
        ("for length in seconds", "for i, length in enumerate(seconds)",
         "free_at.index(min(free_at))", "i % n", "in turn"),
        ("for length in seconds:", "for i, length in enumerate(seconds):",
         "first = free_at.index(min(free_at))",
         "first = i % n\n        free_at = [max(free_at)] * n if first == 0 else free_at",
         "waits for all devices"),
        ("+= length", "+= int(length)", "2 devices take 4, not 3"),
        ("return max(free_at)", "return free_at", "return a number of seconds"),
        ("return", "seconds.sort()\n    return", "it changed the list of seconds"),
    ],
    2: [
        ("newest.get(name)", "newest[name]", "it raises KeyError"),
        ('!= "done"', '== "failed"', "a job without a row has never ended"),
        ('newest.get(name) != "done"', "name not in newest", "only a job that is done is left out"),
        ('!= "done"', '== "done"', "these have a row that says done"),
        ("for row in rows}", "for row in rows[::-1]}", "the newest row of a job counts"),
        (
            """
def again(names, rows):
    failed = [row["name"] for row in rows if row["status"] != "done"]
    return [name for name in names if name in failed]
""",
            "the newest counts",
        ),
        ("return [", "return names or [", "these are all jobs"),
        ("return [", "return [row['status'] for row in rows] or [", "these are left"),
        ("return [name for name in names if newest.get(name) != \"done\"]",
         "return {name for name in names if newest.get(name) != 'done'}", "return a list of names"),
    ],
}
