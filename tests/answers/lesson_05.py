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
    ],
    2: [
        ("def", "import numpy as np\n\n\ndef", "return [", "return np.array([",
         '"done"]', '"done"])'),
        ("return [", "return tuple(", '"done"]', '"done")'),
    ],
}

WRONG = {
    1: [
        ("for length in seconds:", "for i, length in enumerate(seconds):",
         "first = free_at.index(min(free_at))",
         "first = i % n\n        free_at = [max(free_at)] * n if first == 0 else free_at",
         "waits for all devices"),
        ("+= length", "+= int(length)", "2 devices take 4, not 3"),
        ("return max(free_at)", "return free_at", "return a number of seconds"),
        ("return max(free_at)", "return -(-sum(seconds) // n)", "and rounded up"),
        ("return", "seconds.sort()\n    return", "it changed the list of seconds"),
    ],
    2: [
        ("newest.get(name)", "newest[name]", "it raises KeyError"),
        ("for row in rows}", "for row in rows[::-1]}", "the newest row of a job counts"),
        (
            """
def again(names, rows):
    failed = [row["name"] for row in rows if row["status"] != "done"]
    return [name for name in names if name in failed]
""",
            "the newest counts",
        ),
        ("return [", "return [row['status'] for row in rows] or [", "these are left"),
        ("return [name for name in names if newest.get(name) != \"done\"]",
         "return {name for name in names if newest.get(name) != 'done'}", "return a list of names"),
    ],
}
