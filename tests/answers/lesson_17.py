"""Answers to the exercises of lesson 17: right ones, and wrong ones with their hints."""

RIGHT = {
    1: [
        ("def", "import numpy as np\n\n\ndef", "[0] * n", "np.zeros(n)",
         "free_at.index(min(free_at))", "free_at.argmin()"),
    ],
    2: [
        ("def", "import numpy as np\n\n\ndef", "return [", "return np.array([",
         '"done"]', '"done"])'),
    ],
}

WRONG = {
    1: [
        ("+= length", "+= int(length)", "2 devices take 4, not 3"),
        ("return", "seconds.sort()\n    return", "it changed the list of seconds"),
    ],
    2: [
        ("return [name for name in names if newest.get(name) != \"done\"]",
         "return {name for name in names if newest.get(name) != 'done'}", "return a list of names"),
    ],
}
