"""What each worker runs first: it runs the script, and tells the launcher how far that is.

It imports nothing of this package, so that the script finds Python as if it were started alone.
The strategy's constructor is where a worker waits for the others, up to an hour, and it holds
Python's lock meanwhile: no thread of the worker could keep watch. So the worker only says when it
goes in and when it comes out, and the launcher, outside, watches the time. It also says that steps
go on, once a second, that the first call of a function has begun, which compiles it, and that Keras
trains though no strategy was made.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from functools import partial, wraps
from types import ModuleType
from typing import Any

# At this signal the worker prints where its Python is; no library uses it. macOS has fewer.
ASKS = getattr(signal, "SIGRTMAX", signal.SIGUSR2) - 1
EVERY = 1.0  # seconds between two words about steps

# In a worker, tells its launcher of an event.
tell: Callable[[str], None] | None = None


def main() -> None:
    """Run the script that is named, after the pipe to the launcher and this worker's index."""
    import faulthandler
    import os
    import runpy

    pipe, index, script = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    sys.argv[:] = sys.argv[3:]
    if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):  # not under PYTHONSAFEPATH
        sys.path[0] = os.path.dirname(os.path.abspath(script))
    os.set_inheritable(pipe, False)

    def say(event: str) -> None:
        os.write(pipe, f"{index} {event} {time.monotonic()}\n".encode())

    faulthandler.register(ASKS, file=2)
    global tell
    tell = say
    # Where `fit` looks for it: this file was started as a script, and the next one takes its name.
    sys.modules["mgpu_helpers.cluster.worker"] = sys.modules["__main__"]
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
    count_steps(module, say)


def count_steps(tensorflow: Any, say: Callable[[str], None]) -> None:
    """Let each call of a function that TensorFlow compiles say that the worker goes on.

    Each run of a strategy says so too, for a loop without such a function. What is wrapped keeps
    the name of its module: AutoGraph would rewrite it if it were the script's.
    """
    said, first_calls = 0.0, 0
    several = tensorflow.distribute.MultiWorkerMirroredStrategy

    def going_on(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def does(*args: Any, **kwargs: Any) -> Any:
            nonlocal said
            try:
                return call(*args, **kwargs)
            finally:
                if time.monotonic() > said + EVERY:
                    said = time.monotonic()
                    say("steps")

        return does

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal first_calls
            first = self.experimental_get_tracing_count() == 0
            if first and not first_calls:
                say("compiles")
            does = getattr(self, "python_function", None)
            of_keras = (getattr(does, "__module__", None) or "").startswith("keras.")
            if first and of_keras and not hasattr(several, "made"):
                say("alone")
            first_calls += first
            try:
                return call(self, *args, **kwargs)
            finally:
                first_calls -= first
                if first and not first_calls:
                    say("compiled")

        return __call__

    function, strategy = type(tensorflow.function(lambda: None)), tensorflow.distribute.Strategy
    function.__call__ = going_on(counted(function.__call__))
    strategy.run = going_on(strategy.run)


def watch(strategy: Any, say: Callable[[str], None]) -> None:
    """Let the strategy's constructor say when it begins and when it ends."""
    init = strategy.__init__

    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        say("waits")
        strategy.made = True
        try:
            init(self, *args, **kwargs)
        finally:
            say("goes")

    strategy.__init__ = __init__


if __name__ == "__main__":
    main()
