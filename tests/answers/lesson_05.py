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
    ],
}

WRONG = {
    1: [
        ("in seconds", "in sorted(seconds, reverse=True)", "take 5"),
        ("free_at.index(min(free_at))", "0", "take 5"),
        ("+= length", "+= int(length)", "take 4, not 3"),
        ("return", "seconds.sort()\n    return", "it changed the list of seconds"),
    ],
    2: [
        ("newest.get(name)", "newest[name]", "it raises KeyError"),
        ("return [", "return [row['status'] for row in rows] or [", "these are left"),
        ("return [name for name in names if newest.get(name) != \"done\"]",
         "return {name for name in names if newest.get(name) != 'done'}", "return a list of names"),
    ],
}
