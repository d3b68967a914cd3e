"""What a worker's log says at its end, and which other worker it says was lost."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Two forms of TensorFlow's own lines, of 2.21 and before. Errors are kept but for the first look
# for GPUs, which says one on every machine that has none.
LOGGED = re.compile(
    r"[IW]\d{4} \d\d:\d\d:\d+\.\d+ +\d+ \S+\]|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] "
    r"|E\d{4} .*(?:cuda_platform\.cc|cuInit)|\d{4}-\d\d-\d\d .*: E .*(?:cuda|cuInit)"
    r"|WARNING: All log messages before absl::InitializeLog"
    r"|To enable the following instructions: |/job:\w+/replica:\d+/task:\d+$"
)
INSIDE = re.compile(
    r'(\s*)File "(?:.*/site-packages/(?:tensorflow|keras)/|<frozen runpy>|.*/cluster/worker\.py)'
)
CHIEF = "RPC: /tensorflow.CoordinationService/"  # asked of worker 0, without its name

# In the order of how far they can be trusted; each is followed by the task that was lost.
LOST = tuple(
    re.compile(before + r"/job:worker/(?:replica:\d+/)?task:(\d+)")
    for before in (
        r"\(stopped sending heartbeats\):\s+",
        r"from remote target ",
        r"Error reported from ",
    )
)


def without_noise(lines: Sequence[str]) -> list[str]:
    """Leave out what TensorFlow says of itself, and its own lines in a traceback.

    >>> without_noise(["I0000 00:00:17.5 9 port.cc:153] oneDNN is on", "step 1", "loss 0.5"])
    ['step 1', 'loss 0.5']
    """
    kept: list[str] = []
    inside = None  # the indent of a frame of TensorFlow's, while in it
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if inside is not None and indent > inside:
            continue
        frame = INSIDE.match(line)
        inside = len(frame[1]) if frame else None
        if not frame and not LOGGED.match(line) and (line.strip() or (kept and kept[-1].strip())):
            kept.append(line)
    return kept


def last(lines: Sequence[str], n: int) -> list[str]:
    """Return the last n lines; of an error that is longer the beginning, too.

    >>> last(["Traceback (most recent call last):", '  File "a.py"', "ValueError: [1", *"2345"], 4)
    ['  File "a.py"', 'ValueError: [1', '...', '5']
    """
    traces = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent")]
    after = range(traces[-1] + 1, len(lines)) if traces else range(0)
    error = next((i for i in after if lines[i][:1].strip()), len(lines))
    if error >= len(lines) - n:
        return list(lines[-n:])
    head = [*lines[max(traces[-1], error + 1 - n // 2) : error + 1], "..."]
    return head + list(lines[len(head) - n :])


def lost(lines: Sequence[str], own: int) -> int | None:
    """Return the index of the worker that was lost, as the end of another's log has it.

    >>> lost(["the following tasks are unhealthy (stopped sending heartbeats):",
    ...       "/job:worker/replica:0/task:1"], own=0)
    1
    """
    text = "\n".join(lines[-60:])
    for pattern in LOST:
        named = [int(index) for index in pattern.findall(text) if int(index) != own]
        if named:
            return named[-1]
    return 0 if own and CHIEF in text else None
