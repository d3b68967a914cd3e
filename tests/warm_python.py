"""A Python that has imported TensorFlow already, to be started in place of the interpreter.

TensorFlow takes three seconds of processor to import, and a test run starts a hundred processes.
A server imports it once and then forks a process for each that is asked for, before anything has
started TensorFlow's runtime: what a fork cannot take along, threads and devices, is not there yet.

`start` gives the path of a program that takes `-c CODE`, `-m MODULE` or a file, as Python does. It
hands its arguments, folder, environment and open files over to the server, passes signals on, and
ends as the forked process ends; a SIGKILL ends that one as well. It becomes an ordinary Python
when other options are asked for, and when the environment has settings that are read while
TensorFlow is imported and are not the server's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

FOLDER = "WARM_PYTHON"  # the environment variable: the folder of the socket and the program
# The log level is silent already, as `devices.setup` would make it.
READ_AT_IMPORT = re.compile(
    "TF_(?!CPP_MIN_LOG_LEVEL$|CONFIG$|CLI_|NUM_INT|OVERRIDE_)|TF2_(?!BEHAVIOR$)|XLA_|ONEDNN_|DNNL_|OMP_|"
    "KERAS_|LD_|PYTHON(?!PATH$|UNBUFFERED$|DONTWRITEBYTECODE$)"
)
FIRST = re.compile(r"-u|-c|-m|[^-].*", re.DOTALL)
PASSED_ON = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
    signal.SIGRTMAX - 1,  # by which `mgpu cluster` asks a worker for its stack
)  # fmt: skip


def settings() -> dict[str, str]:
    """Return what of this environment counts while TensorFlow is imported."""
    return {k: v for k, v in os.environ.items() if READ_AT_IMPORT.match(k)}


def _cold() -> None:
    """Become an ordinary Python."""
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


def main() -> None:
    """Have the server fork a process, pass signals on to it, and end as it does."""
    if not FIRST.fullmatch("".join(sys.argv[1:2])):
        _cold()
    wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        wire.connect(os.path.join(os.environ[FOLDER], "socket"))
    except (OSError, KeyError):
        _cold()
    heeded = {number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN}
    opened = {int(name) for name in os.listdir("/proc/self/fd")} - {wire.fileno()}
    there = [fd for fd in opened if os.path.lexists(f"/proc/self/fd/{fd}")]  # not the listing's
    descriptors = [fd for fd in there if fd < 3 or os.get_inheritable(fd)]
    # From here on a signal waits until there is a process that it can be passed on to.
    signal.pthread_sigmask(signal.SIG_BLOCK, heeded)
    request = {
        "arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ),
        "cores": [*os.sched_getaffinity(0)], "settings": settings(), "descriptors": descriptors,
        "ignored": [*{*PASSED_ON} - heeded],
    }  # fmt: skip
    socket.send_fds(wire, [b"f"], descriptors)
    wire.sendall(json.dumps(request).encode() + b"\n")
    answers = wire.makefile()
    child = int(answers.readline() or 0)

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in heeded if child else ():
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, heeded)
    if not child:
        _cold()
    code = int(answers.readline() or 1)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        os.kill(os.getpid(), -code)
    os._exit(code)


def serve(listening: socket.socket) -> dict[str, Any]:
    """Import TensorFlow, fork for each who asks, and return in the forks with what was asked.

    The server ends when its standard input does, with whoever started it.
    """
    read_at_import = settings()
    import gc
    import random

    import ipykernel.kernelapp  # noqa: F401
    import nbformat  # noqa: F401
    import numpy
    import scipy.stats  # noqa: F401  # and so on: what takes long
    import tensorflow as tf  # brings Keras, Matplotlib and IPython along
    from tensorflow.python.eager import context

    tf.get_logger()
    gc.freeze()  # what was imported is not looked through for garbage again in each fork
    threads = set(os.listdir("/proc/self/task"))  # one of them Python's
    children: dict[int, tuple[int, socket.socket]] = {}  # with who waits, by its pidfd
    while True:
        waiting = {wire: end for end, (_, wire) in children.items()}
        readable, _, _ = select.select([listening, 0, *children, *waiting], [], [])
        if 0 in readable:
            for pid, _ in children.values():
                _kill(pid)
            os._exit(0)
        for end in {waiting.get(each, each) for each in readable} & {*children}:
            pid, wire = children.pop(end)
            if end not in readable:
                _kill(pid)  # who waited was killed
            _tell(wire, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            os.close(end)
            wire.close()
        if listening not in readable:
            continue
        wire, _ = listening.accept()
        try:
            _, received, _, _ = socket.recv_fds(wire, 1, 253)  # as many as Linux takes
            request = json.loads(wire.makefile().readline())
        except (OSError, ValueError):  # killed while it asked
            wire.close()
            continue
        alone = set(os.listdir("/proc/self/task")) <= threads and not context.context()._initialized
        if request["settings"] != read_at_import or not alone:  # a fork would lose threads
            _tell(wire, 0)
            wire.close()
        else:
            pid = os.fork()
            if not pid:
                for end, (_, other) in children.items():
                    os.close(end)
                    other.close()
                listening.close()
                wire.close()
                random.seed()
                numpy.random.seed()
                _take_over(request, received)
                return request
            _tell(wire, pid)
            children[os.pidfd_open(pid)] = pid, wire
        for descriptor in received:
            os.close(descriptor)


def _tell(wire: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):
        wire.sendall(b"%d\n" % number)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _take_over(request: dict[str, Any], received: list[int]) -> None:
    """Let a fork have the files, folder, environment, cores and signals of who asked for it."""
    import fcntl

    os.setsid()
    wanted: list[int] = request["descriptors"]
    above = max([*wanted, *received, 2]) + 1
    high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, above) for each in received]
    for each in {0, 1, 2, *received}:
        os.close(each)
    for number, each in zip(wanted, high, strict=True):
        os.dup2(each, number)
        os.close(each)
    unbuffered = request["environment"].get("PYTHONUNBUFFERED")
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        stream = None
        if number in wanted:
            stream = open(number, mode, closefd=False, encoding="utf-8",
                          errors="backslashreplace" if number == 2 else "strict",
                          buffering=1 if number == 2 or os.isatty(number) else -1)  # fmt: skip
            if mode == "w" and (unbuffered or request["arguments"][0] == "-u"):
                stream.reconfigure(write_through=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.sched_setaffinity(0, request["cores"])
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    if backend := os.environ.get("MPLBACKEND"):
        sys.modules["matplotlib"].rcParams["backend"] = backend


def run(arguments: list[str]) -> None:
    """Do what a Python does with these arguments."""
    import runpy
    import types

    # This file's own frames would be the first of a traceback.
    inside = types.ModuleType("__main__")
    sys.modules["__main__"], shown = inside, sys.excepthook

    def without_ours(kind: type[BaseException], error: BaseException, trace: object) -> None:
        while trace and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        shown(kind, error.with_traceback(trace), trace)

    sys.excepthook = without_ours
    sys.executable = program()
    arguments = arguments[arguments[0] == "-u" :]
    kind, rest = arguments[0], arguments[1:]
    more = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:1] = more  # the first was this file's folder
    if kind == "-c":
        sys.argv, sys.path[:0] = ["-c", *rest[1:]], [""]
        exec(compile(rest[0], "<string>", "exec"), vars(inside))
    elif kind == "-m":
        sys.argv, sys.path[:0] = ["-m", *rest[1:]], [os.getcwd()]
        if rest[0] == "ipykernel_launcher":  # as ipykernel does, but Matplotlib has been imported
            inline = "module://matplotlib_inline.backend_inline"
            backend = os.environ.setdefault("MPLBACKEND", inline)
            sys.modules["matplotlib"].rcParams["backend"] = backend
        runpy._run_module_as_main(rest[0])
    else:
        sys.argv, sys.path[:0] = arguments, [os.path.dirname(os.path.abspath(kind))]
        inside.__file__ = kind
        with open(kind, "rb") as file:
            exec(compile(file.read(), kind, "exec"), vars(inside))


def end_of(arguments: list[str]) -> int:
    """Run as a Python does, wait for its threads, and return its exit status.

    What Python itself does at its end, with all of TensorFlow imported, takes 0.15 s more.
    """
    status: Any = 0
    try:
        run(arguments)
    except SystemExit as error:
        status = error.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except KeyboardInterrupt:
        raise
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    import atexit
    import threading

    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    return status & 255


def program() -> str:
    """Return the path of what starts a warm Python; an ordinary one where there is no server."""
    folder = os.environ.get(FOLDER)
    return os.path.join(folder, "python") if folder else sys.executable


def start(folder: str) -> subprocess.Popen[bytes] | None:
    """Start a server in an empty folder; None where there is one, or this system cannot fork well.

    It ends with the process that called this, or when its standard input is closed.
    """
    if FOLDER in os.environ or sys.platform != "linux":
        return None
    import shlex
    import subprocess

    with open(os.path.join(folder, "python"), "w") as file:
        words = map(shlex.quote, (sys.executable, "-IS", __file__))
        file.write(f'#!/bin/sh\nexec {" ".join(words)} "$@"\n')
    os.chmod(file.name, 0o755)
    environment = {k: v for k, v in os.environ.items() if k != "MPLBACKEND"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(os.path.join(folder, "socket"))
        listening.listen(64)  # whoever comes before TensorFlow is imported waits
        os.environ[FOLDER] = folder
        return subprocess.Popen(
            [sys.executable, __file__, "--serve", str(listening.fileno())],
            stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=[listening.fileno()],
            env=environment | {FOLDER: folder, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        os._exit(end_of(serve(socket.socket(fileno=int(sys.argv[2])))["arguments"]))
    else:
        main()
