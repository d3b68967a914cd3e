"""Run Keras's own tests of `fit`, as they are and under `fit.strategy` on two devices.

``python tools/try_keras_tests.py [FILE ...]`` takes those that come with the installed Keras, by
default of its trainer and its callbacks, and says which fail under the strategy alone, and why.
docs/compare.md has what came out.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

FOLDERS = "trainers/trainer_test.py", "callbacks"
LIMIT = 3600  # seconds


def pytest_configure(config: Any) -> None:
    """Let every test of this process run in the scope of `fit.strategy`; pytest calls it."""
    for mark in "requires_trainable_backend", "multi_device":
        config.addinivalue_line("markers", f"{mark}: of Keras")
    from mgpu_helpers import devices, fit

    plan = devices.setup(2)
    sys.modules.setdefault("jax", types.ModuleType("jax"))  # a file imports it, for tests with it
    if os.environ["TRY_KERAS"] == "strategy":
        import tensorflow as tf
        from keras.src.testing import TestCase

        from mgpu_helpers import _private

        of_trainer = "keras.src.backend.tensorflow.trainer.TensorFlowTrainer."
        for what, path in _private.KERAS.items():  # some of its models are no keras.Model
            _private.KERAS[what] = path.replace("keras.Model.", of_trainer)

        def set_up(self: Any, before: Any = TestCase.setUp) -> None:
            before(self)  # which clears the session, and with it a strategy that is set
            tf.distribute.experimental_set_strategy(fit.strategy(plan))
            self.addCleanup(tf.distribute.experimental_set_strategy, None)

        TestCase.setUp = set_up


def outcomes(files: list[Path], way: str) -> dict[str, str]:
    """Run test files in a process of their own; give each test's first line of failure, or ""."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", folder,
                   "-p", Path(__file__).stem, "-p", "no:cacheprovider",
                   "--continue-on-collection-errors", f"--junitxml={report}"]  # fmt: skip
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        env = os.environ | {"PYTHONPATH": path, "TRY_KERAS": way}
        subprocess.run([*command, *map(str, files)], cwd=folder, env=env, timeout=LIMIT,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        cases = ElementTree.parse(report).iter("testcase")
        return {
            f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}": said(case)
            for case in cases
            if case.find("skipped") is None
        }


def said(case: ElementTree.Element) -> str:
    """Give the first line of what a test failed with; "" where it passed."""
    for kind in "failure", "error":
        if (found := case.find(kind)) is not None:
            return (found.get("message") or kind).splitlines()[0]
    return ""


def main(arguments: list[str]) -> int:
    """Print what passes; return 1 where a test fails under the strategy alone."""
    import keras
    import tensorflow as tf

    (keras_is,) = importlib.util.find_spec("keras").submodule_search_locations
    source = Path(keras_is) / "src"
    files = [file for name in arguments or FOLDERS
             for file in (sorted((source / name).rglob("*_test.py"))
                          if (source / name).is_dir() else [source / name])]  # fmt: skip
    with ThreadPoolExecutor(2) as both:
        alone, ours = both.map(outcomes, [files] * 2, ["alone", "strategy"])
    passed = [name for name, why in alone.items() if not why]
    only = {name: ours.get(name, "did not run") for name in passed if ours.get(name, "?")}
    print(f"Keras {keras.__version__}, TensorFlow {tf.__version__}, {len(files)} files: "
          f"{len(passed)} tests pass as they are, {len(passed) - len(only)} of them under the "
          "strategy, too.")  # fmt: skip
    print(*(f"{name}: {why}" for name, why in only.items()), sep="\n")
    return bool(only)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
