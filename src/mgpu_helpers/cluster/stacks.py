"""What each worker did when nothing went on: its last line, and where its Python was."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping

from mgpu_helpers._processes.process import stat
from mgpu_helpers.cluster.judging import INSIDE
from mgpu_helpers.cluster.watch import Watch
from mgpu_helpers.cluster.worker import ASKS

ANSWER, QUIET = 2.0, 0.2  # seconds for the first line of a stack, and without a further one
FRAMES = 12  # of the main thread, those called last
HEAD = "(most recent call first):"


def doing(watches: Mapping[int, Watch]) -> str:
    """Ask each worker for its stack, and say what it printed last and where it was."""
    texts = {index: "" for index in watches}
    for watch in watches.values():
        watch.read()
        with contextlib.suppress(OSError):  # it has ended
            os.kill(watch.pid, ASKS)
    asked = since = time.monotonic()
    while time.monotonic() < (since + QUIET if all(texts.values()) else asked + ANSWER):
        time.sleep(0.02)
        for index, watch in watches.items():
            if new := watch.file.read() if watch.file else b"":
                texts[index] += new.decode(errors="replace")
                since = time.monotonic()
    return "\n".join(_of(index, watch, texts[index]) for index, watch in watches.items())


def _of(index: int, watch: Watch, text: str) -> str:
    said = f"had last printed {watch.said.strip()[:200]!r}" if watch.said else "had printed nothing"
    frames = main_thread(text)
    if frames:
        return "\n".join([f"Worker {index} {said}, and was at {HEAD}", *frames])
    letter = stat(watch.pid)[0]
    why = {"T": ": it was stopped, as by SIGSTOP", "D": ": it waits for a disk"}.get(letter, "")
    return f"Worker {index} {said}, and did not say where it was{why}."


def main_thread(text: str) -> list[str]:
    """Give the calls of the main thread, the last first, without those of TensorFlow and Keras.

    Only the very last call may be theirs: it says what the thread waits in.

    >>> main_thread('''Thread 0x1 (most recent call first):
    ...   File "a.py", line 1 in f
    ... Current thread 0x2 (most recent call first):
    ...   File "b.py", line 5 in step
    ...   File "/x/site-packages/keras/trainer.py", line 399 in fit
    ...   File "b.py", line 9 in <module>
    ...   File "<frozen runpy>", line 88 in _run_code''')
    ['  File "b.py", line 5 in step', '  File "b.py", line 9 in <module>']
    """
    frames: list[str] = []
    for line in text.splitlines():
        if line.endswith(HEAD):  # the main thread is the last
            frames = []
        elif re.match(r'  File "', line):
            frames.append(line)
    return [line for i, line in enumerate(frames) if not i or not INSIDE.match(line)][:FRAMES]
