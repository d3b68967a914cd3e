"""A process from `warm_python` is what an ordinary Python would have been, but for the import."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

import warm_python
from conftest import lives, wait_for

IMPORTED = "import os, sys; print('tensorflow' in sys.modules, os.getpid(), flush=True); "

def start(*arguments: object, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [warm_python.program(), *map(str, arguments)], text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def ended(*arguments: object, **options) -> tuple[int, str, str]:
    ran = start(*arguments, **options)
    out, error = ran.communicate("said", timeout=120)
    return ran.returncode, out, error


def test_what_a_process_is_started_with_is_handed_over(tmp_path):
    core = min(os.sched_getaffinity(0))
    reading, writing = os.pipe()
    code = (
        "import json, os, sys; os.write(int(sys.argv[1]), b'through')\n"
        "print(json.dumps([sys.argv[2:], os.getcwd(), os.environ['MINE'],\n"
        "    [*os.sched_getaffinity(0)], sys.stdin.read(), __name__]))"
    )
    (tmp_path / "file.py").write_text(code)
    env = os.environ | {"MINE": "é", "PYTHONPATH": str(tmp_path)}
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        for how in (["-c", code], ["-m", "file"], [tmp_path / "file.py"]):
            given = {"env": env, "cwd": tmp_path, "pass_fds": [writing]}
            status, out, error = ended(*how, writing, "a b", "--", **given)
            wanted = [["a b", "--"], str(tmp_path), "é", [core], "said", "__main__"]
            assert (status, json.loads(out or "0"), error) == (0, wanted, "")
            assert os.read(reading, 99) == b"through"
    finally:
        os.sched_setaffinity(0, before)
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("code, status, said", [
    ("sys.exit(3)", 3, ""), ("os.abort()", -signal.SIGABRT, ""),
    ("1 / 0", 1, 'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n'),
])  # fmt: skip
def test_a_process_ends_as_python_does(code, status, said):
    found, _, error = ended("-c", IMPORTED + code)
    assert found == status and error.startswith(said) and "warm_python" not in error


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_a_signal_reaches_the_process(name):
    number = getattr(signal, name)
    handled = f"import signal; signal.signal({number:d}, lambda n, f: sys.exit(7)); "
    code = "import sys, time; " + handled * (name != "SIGKILL") + IMPORTED
    with start("-c", code + "\nfor _ in range(6000): time.sleep(0.01)") as ran:
        pid = int(ran.stdout.readline().split()[1])
        ran.send_signal(number)
        assert ran.wait(timeout=60) == (7 if name != "SIGKILL" else -9)
    wait_for(lambda: not lives(pid))


# A setting that the server was not started with.
OTHER = "1" if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0" else "0"


@pytest.mark.skipif(warm_python.FOLDER not in os.environ, reason="there is no server")
@pytest.mark.parametrize("option, env, warm", [
    ([], {}, True), (["-I"], {}, False), ([], {"TF_ENABLE_ONEDNN_OPTS": OTHER}, False),
    ([], {"LD_LIBRARY_PATH": "/nowhere"}, False), ([], {"XLA_FLAGS": ""}, False),
])  # fmt: skip
def test_only_what_would_be_another_import_is_an_ordinary_python(option, env, warm):
    status, out, _ = ended(*option, "-c", IMPORTED, env=os.environ | env)
    assert (status, out.split()[0]) == (0, str(warm))
