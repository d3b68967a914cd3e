"""Answers to the exercises of lesson 04: right ones, and wrong ones with their hints."""

RIGHT: dict[int, list[str]] = {}

WRONG = {
    1: [
        ("def outside(visible, device):\n    return visible.split(',')[int(device[-1])]",
         "but text"),
        ("def outside(visible, device):\n    return int(visible[2 * int(device[-1])])",
         "/GPU:2 is 12"),
        ("def outside(visible, device):\n    return int(visible.split(',')[int(device[-1])])",
         "/GPU:11 is 10"),
    ],
    2: [
        ("def environment(device):\n    return {'CUDA_VISIBLE_DEVICES': str(device), "
         "'CUDA_DEVICE_ORDER': 'PCI_BUS_ID'}",
         "the rest of the environment is lost"),
        ("def environment(device):\n"
         "    return os.environ | {'CUDA_VISIBLE_DEVICES': str(device)}",
         "set CUDA_DEVICE_ORDER"),
        ("def environment(device):\n    return os.environ | {'CUDA_VISIBLE_DEVICES': device}",
         "is not text"),
        ("def environment(device):\n    pass", "a dict of text"),
    ],
    3: [
        ("def wall(seconds, n):\n    return max(sum(seconds[i::n]) for i in range(n))",
         "take 5"),
        ("def wall(seconds, n):\n    return max(seconds)", "take 5"),
        ("def wall(seconds, n):\n    free = [0] * n\n"
         "    for length in sorted(seconds, reverse=True):\n"
         "        free[free.index(min(free))] += length\n    return max(free)",
         "take 5"),
    ],
}
