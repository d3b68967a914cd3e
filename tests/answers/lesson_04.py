"""Answers to the exercises of lesson 04: right ones, and wrong ones with their hints."""

QUEUE = """
def wall(seconds, n):
    free = [0] * n
    for length in seconds:
        free.sort()
        free[0] += length
    return max(free)
"""

RIGHT = {
    1: [
        "outside = lambda visible, device: "
        "list(map(int, visible.split(',')))[int(device.split(':')[1])]",
        """
def outside(visible, device):
    table = {f"/GPU:{i}": float(number) for i, number in enumerate(visible.split(","))}
    return table[device]
""",
        """
import re

def outside(visible, device):
    return tf.constant([int(n) for n in visible.split(",")])[int(re.search(r"[0-9]+$", device)[0])]
""",
    ],
    2: [
        "def environment(device):\n    return dict(os.environ, CUDA_VISIBLE_DEVICES=f'{device}', "
        "CUDA_DEVICE_ORDER='PCI_BUS_ID')",
        """
from collections import ChainMap

def environment(device):
    given = {"CUDA_VISIBLE_DEVICES": str(device), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return ChainMap(given, os.environ)
""",
        """
from unittest import mock

def environment(device):
    with mock.patch.dict(os.environ):
        os.environ["CUDA_VISIBLE_DEVICES"] = str(device)
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        return os.environ.copy()
""",
    ],
    3: [
        QUEUE,
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
        """
import heapq

def wall(seconds, n):
    running, now = [], 0.0
    for length in seconds:
        if len(running) == n:
            now = heapq.heappop(running)
        heapq.heappush(running, now + length)
    return max(running)
""",
        """
import numpy as np

def wall(seconds, n):
    free = np.zeros(n)
    for length in seconds:
        free[free.argmin()] += length
    return free.max()
""",
    ],
}

WRONG = {
    1: [
        ("def outside(visible, device):\n    return visible.split(',')[int(device[-1])]",
         "but text"),
        ("def outside(visible, device):\n    return int(visible[2 * int(device[-1])])",
         "/GPU:2 is 12"),
        ("def outside(visible, device):\n    return int(visible.split(',')[int(device[-1])])",
         "/GPU:11 is 10"),
        ("def outside(visible, device):\n    return visible.split(',').index(device[-1])",
         "/GPU:0 is 3, not 1"),
        ("def outside(visible, device):\n    return int(device.split(':')[1])",
         "is the number inside"),
        ("def outside(visible, device):\n    return f'GPU {visible.split(\",\")[int(device[5:])]}'",
         "value of type str"),
        ("def outside(visible, device):\n"
         "    order = [3, 0, 12, 5, 7, 1, 2, 4, 6, 8, 9, 10, 11, 13, 14, 15]\n"
         "    return order[int(device[5:])]",
         "with '"),
        ("def outside(visible, device):\n    return visible[device]", "it raises TypeError"),
    ],
    2: [
        ("def environment(device):\n    return {'CUDA_VISIBLE_DEVICES': str(device), "
         "'CUDA_DEVICE_ORDER': 'PCI_BUS_ID'}",
         "the rest of the environment is lost"),
        ("def environment(device):\n"
         "    return os.environ | {'CUDA_VISIBLE_DEVICES': str(device)}",
         "set CUDA_DEVICE_ORDER"),
        ("def environment(device):\n    return {'CUDA_DEVICE_ORDER': 'PCI_BUS_ID'} | os.environ "
         "| {'CUDA_VISIBLE_DEVICES': str(device)}",
         "set CUDA_DEVICE_ORDER"),
        ("def environment(device):\n    copy = os.environ.copy()\n"
         "    copy.setdefault('CUDA_DEVICE_ORDER', 'PCI_BUS_ID')\n"
         "    copy['CUDA_VISIBLE_DEVICES'] = str(device)\n    return copy",
         "set CUDA_DEVICE_ORDER"),
        ("def environment(device):\n    given = {name: os.environ[name] for name in os.environ "
         "if name in ('PATH', 'MGPU_MARK')}\n    return dict(given, "
         "CUDA_VISIBLE_DEVICES=f'{device}', CUDA_DEVICE_ORDER='PCI_BUS_ID')",
         "the rest of the environment is lost"),
        ("def environment(device):\n    return os.environ | {'CUDA_VISIBLE_DEVICES': "
         "str(device)[0], 'CUDA_DEVICE_ORDER': 'PCI_BUS_ID'}",
         "the child sees CUDA_VISIBLE_DEVICES='1'"),
        ("def environment(device):\n    return os.environ | {'CUDA_VISIBLE_DEVICES': device}",
         "is not text"),
        ("def environment(device):\n    pass", "a dict of text"),
        ("def environment(device):\n    return os.environ | {'CUDA_VISIBLE_DEVICES': '2', "
         "'CUDA_DEVICE_ORDER': 'PCI_BUS_ID'}",
         "the child sees CUDA_VISIBLE_DEVICES='2'"),
        ("copy = dict(os.environ)\n\ndef environment(device):\n"
         "    copy.update(MGPU_MARK='kept', CUDA_VISIBLE_DEVICES=str(device),\n"
         "                CUDA_DEVICE_ORDER='PCI_BUS_ID')\n    return copy",
         "make a copy each time"),
        ("def environment(device):\n    return os.environ | {'CUDA_VISIBLE_DEVICES': "
         "','.join(map(str, range(device + 1))), 'CUDA_DEVICE_ORDER': 'PCI_BUS_ID'}",
         "the child sees CUDA_VISIBLE_DEVICES='0,1,2"),
        ("def environment(device):\n    os.environ['CUDA_VISIBLE_DEVICES'] = str(device)\n"
         "    return os.environ.copy()",
         "it changed this notebook's environment"),
    ],
    3: [
        ("def wall(seconds, n):\n    return max(sum(seconds[i::n]) for i in range(n))",
         "take 5"),
        ("def wall(seconds, n):\n    return max(seconds)", "take 5"),
        ("def wall(seconds, n):\n    free = [0] * n\n"
         "    for length in sorted(seconds, reverse=True):\n"
         "        free[free.index(min(free))] += length\n    return max(free)",
         "take 5"),
        ("def wall(seconds, n):\n    waves = range(0, len(seconds), n)\n"
         "    return sum(max(seconds[i : i + n]) for i in waves)",
         "take 5"),
        ("def wall(seconds, n):\n    return sum(seconds)", "take 5"),
        ("def wall(seconds, n):\n    return max(max(seconds), -(-sum(seconds) // n))", "take 5"),
        ("def wall(seconds, n):\n    return {3: 5, 1: 3, 4: 5 if n > 1 else 10, 5: 9 - 4 * (n > 2)"
         "}.get(len(seconds), 0)",
         "in their order"),
        (QUEUE.replace("+= length", "+= int(length)"), "take 4, not 3"),
        (QUEUE.replace("return max(free)", "seconds.sort()\n    return max(free)"),
         "it changed the list of seconds"),
        (QUEUE.replace("return max(free)", "return free"), "the result has shape"),
        (QUEUE.replace("return max(free)", "return f'{max(free)} s'"), "value of type str"),
    ],
}
