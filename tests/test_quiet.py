"""Nothing of TensorFlow's start-up reaches the reader, unless asked for or needed."""

from __future__ import annotations

import pytest

from conftest import run_python

FIRST_CELLS = """
import os
from mgpu_helpers import devices
plan = devices.setup(2)
import tensorflow as tf
with tf.device(plan.devices[0]):
    a = tf.ones([4, 4])
tf.function(tf.matmul)(a, a)
with tf.Graph().as_default() as graph:
    total = tf.add(1.0, 2.0)
with tf.compat.v1.Session(graph=graph, config=plan.session_config()) as session:
    print(session.run(total))
os.write(2, b"a message of the lesson\\n")
"""

FAKE = """
import os
os.write(2, b"from the depths of C\\n")
class Logger:
    def setLevel(self, level): print("level", level)
def get_logger(): return Logger()
class config:
    def list_physical_devices(): os.write(2, b"no cudaGetRuntimeVersion\\n")
class autograph:
    def set_verbosity(level, alsologtostdout): assert not alsologtostdout
"""


def fake_tensorflow(folder, code):
    (folder / "tensorflow").mkdir(parents=True)
    (folder / "tensorflow" / "__init__.py").write_text(code)
    start = f"import sys; sys.path.insert(0, {str(folder)!r}); from mgpu_helpers import _quiet"
    return f"{start}; _quiet.start(); print('went on')"


def test_first_cells_of_a_lesson_print_nothing_on_stderr():
    # At level 0 TensorFlow 2.21 says, at its look for GPUs and at the first Session, what older
    # ones say there at any level.
    done = run_python(FIRST_CELLS, imported=False, MGPU_MODE="cores", TF_CPP_MIN_LOG_LEVEL="0")
    assert (done.stdout, done.stderr) == ("3.0\n", "a message of the lesson\n")


def test_what_the_import_says_is_dropped_unless_it_is_verbose(tmp_path):
    code = fake_tensorflow(tmp_path, FAKE)
    full = "import tempfile; tempfile.tempdir = '/nowhere'; "  # no room is needed for it
    done = run_python(full + code, imported=False)
    assert (done.stdout, done.stderr) == ("level ERROR\nwent on\n", "")
    done = run_python(code + "; import tensorflow", imported=False, MGPU_VERBOSE="1")
    assert (done.stdout, done.stderr) == ("went on\n", "from the depths of C\n")


def test_a_look_for_gpus_that_fails_shows_what_it_said(tmp_path):
    last = 'Version\\n")'
    broken = FAKE.replace(last, f"{last}; raise RuntimeError('the driver is gone')")
    done = run_python(fake_tensorflow(tmp_path, broken), check=False, imported=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("from the depths of C\nno cudaGetRuntimeVersion\nTraceback")
    assert done.stderr.endswith("RuntimeError: the driver is gone\n")


@pytest.mark.thorough
def test_autograph_does_not_print_in_a_notebook(tmp_path):
    (tmp_path / "steps.py").write_text(
        "def train():\n"
        "    def batches():\n"
        "        yield 1\n"  # which AutoGraph does not convert
        "    return next(batches())\n"
    )
    code = (
        f"import sys; sys.ps1 = 'In'; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from mgpu_helpers import devices; devices.setup(1)\n"
        "import tensorflow as tf, steps\n"
        "tf.function(steps.train)()"
    )
    assert "AutoGraph" in run_python(code, imported=False, MGPU_VERBOSE="1").stdout
    assert run_python(code, imported=False).stdout == ""
