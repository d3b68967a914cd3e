"""What each worker runs first: it runs the script, and tells the launcher how far that is.

It imports nothing of this package, so that the script finds Python as if it were started alone.
The strategy's constructor is where a worker waits for the others, up to an hour, and it holds
Python's lock meanwhile: no thread of the worker could keep watch. So the worker only says when it
goes in and when it comes out, and the launcher, outside, watches the time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from types import ModuleType
from typing import Any


def main() -> None:
    """Run the script that is named, after the pipe to the launcher and this worker's index."""
    import os
    import runpy
    import time

    pipe, index, script = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    sys.argv[:] = sys.argv[3:]
    if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):  # not under PYTHONSAFEPATH
        sys.path[0] = os.path.dirname(os.path.abspath(script))
    os.set_inheritable(pipe, False)

    def say(event: str) -> None:
        os.write(pipe, f"{index} {event} {time.monotonic()}\n".encode())

    say("started")  # an OSError where the launcher has gone already
    sys.meta_path.insert(0, Finder(say))
    try:
        runpy.run_path(script, run_name="__main__")
        say("done")  # before its lines to the others break
    except SystemExit as end:
        status = (end.code or 0) & 255 if isinstance(end.code, int | None) else 1
        say(f"raised={status}" if status else "done")
        raise
    except BaseException:
        say("raised")  # before the others notice: what they say is a consequence
        raise


class Finder:
    """Finds TensorFlow as Python would, and lets its strategy say when it begins and ends."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find TensorFlow, and change what its loader does."""
        if name != "tensorflow":
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec and spec.loader:
            loads = partial(watched, self.say, spec.loader.exec_module)
            vars(spec.loader)["exec_module"] = loads
        return spec


def watched(
    say: Callable[[str], None], execute: Callable[[ModuleType], None], module: ModuleType
) -> None:
    """Import TensorFlow, and let the strategy's constructor say when it begins and ends.

    Python never looks for garbage in what the import makes. It would look during the import and
    again at the worker's end, which then take 3.9 s of a core instead of 2.4 s.
    """
    import gc

    collects = gc.isenabled()
    gc.disable()
    try:
        execute(module)
    finally:
        gc.freeze()
        if collects:
            gc.enable()
    say("loads")
    watch(module.distribute.MultiWorkerMirroredStrategy, say)


def watch(strategy: Any, say: Callable[[str], None]) -> None:
    """Let the strategy's constructor say when it begins and when it ends."""
    init = strategy.__init__

    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        say("waits")
        try:
            init(self, *args, **kwargs)
        finally:
            say("goes")

    strategy.__init__ = __init__


if __name__ == "__main__":
    main()
