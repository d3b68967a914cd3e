"""Two runners that look for a free device at the same moment: for lesson 04."""

from __future__ import annotations

import subprocess
import sys
import tempfile


def two_at_once(program: str) -> list[str]:
    """Run two runners, let both look before one of them goes on, and return what they say.

    `program` gets a folder of their own, prints "looked", waits for a line, and prints the rest.
    """
    with tempfile.TemporaryDirectory() as marks:
        command = [sys.executable, "-c", program, marks]
        runners = [
            subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(2)
        ]
        for runner in runners:
            assert runner.stdout is not None
            runner.stdout.readline()
        return sorted(runner.communicate("go on\n", timeout=60)[0].strip() for runner in runners)
