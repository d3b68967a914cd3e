"""What several test files share: a fresh Python, and one plan for the whole pytest process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import fake_driver
import fit_models
import warm_python

settings.register_profile("untimed", deadline=None)  # a machine may have other work
settings.load_profile("untimed")

# In the background of a script a shell ignores Ctrl-C, and under nohup a lost terminal; what is
# ignored stays so in every child. The tests are about what these signals do.
for ignored in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        handler = signal.default_int_handler if ignored == signal.SIGINT else signal.SIG_DFL
        signal.signal(ignored, handler)

ROOT = Path(__file__).resolve().parent.parent
DESK, PHONE = {"width": 1400, "height": 900}, {"width": 390, "height": 844}  # of a browser
STARTUP = 200.0  # seconds for workers: other tests may have the cores
sys.path.append(str(ROOT / "benchmarks"))  # last: it has names of the standard library, too


def pytest_configure(config: pytest.Config) -> None:
    """Let the processes of a run with workers be forked from one that has imported TensorFlow."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp()
        config.add_cleanup(lambda: shutil.rmtree(folder))
        if server := warm_python.start(folder):
            config.add_cleanup(server.wait)
            config.add_cleanup(server.stdin.close)
    if sys.executable == warm_python.program():  # a worker, whose tests look at whom they start
        sys.executable = os.path.join(sys.prefix, "bin", "python")
    if any(config.getoption(name, False) for name in ("nbval", "nbval_lax")):
        from ipykernel import kernelspec

        kernel = kernelspec.get_kernel_dict
        kernelspec.get_kernel_dict = lambda: kernel() | {
            "argv": [warm_python.program(), *kernel()["argv"][1:]]
        }


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take what makes several runs of one long run."""
    parser.addoption("--part", help="2/6 for every sixth of the chosen tests, from the second on")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave those tests that are in the part asked for."""
    if part := config.getoption("part"):
        place, parts = map(int, part.split("/"))
        if not 1 <= place <= parts:
            raise pytest.UsageError(f"there is no part {part}")
        chosen = items[place - 1 :: parts]
        config.hook.pytest_deselected(items=[each for each in items if each not in chosen])
        items[:] = chosen


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list) -> None:
    """Let the workers of a run be forked."""
    for spec in specs:
        spec.python = warm_python.program()


LONGEST = ("16", "17", "22", "21", "01", "19", "13")  # by how long they take, the longest first


def longest_first(notebooks: Path) -> list[Path]:
    """List the notebooks so that none of the long ones is left over at the end of a run."""
    order = {number: place for place, number in enumerate(LONGEST)}
    found = sorted(notebooks.glob("*.ipynb"))
    return sorted(found, key=lambda path: order.get(path.name[:2], len(order)))


def clean(**env: str) -> dict[str, str]:
    """Give the environment without what changes plans and runners, and with what is given."""
    changes = ("MGPU_", "TF_", "CUDA_", "SLURM_")
    return {k: v for k, v in os.environ.items() if not k.startswith(changes)} | env


@pytest.fixture
def workers(monkeypatch) -> None:
    """Let workers begin on cores, without what changes plans and runners."""
    for name in os.environ.keys() - clean().keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("MGPU_MODE", "cores")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))


@pytest.fixture(scope="session")
def driver(tmp_path_factory) -> str:
    """Give the folder of the stand-in driver, for LD_LIBRARY_PATH."""
    return fake_driver.build(tmp_path_factory.mktemp("driver"))


def later(*values: Any) -> Any:
    """Give a case of a table that only `make thorough` runs."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def quick(*chosen: Any, among: Sequence[Any]) -> list[Any]:
    """Give the cases of a table, of which `make test` runs those chosen and `make thorough` all."""
    if not {*chosen} <= {*among}:
        raise ValueError(f"{chosen} are not all among {among}")
    cases = [each if isinstance(each, tuple) else (each,) for each in among]
    return [pytest.param(*case) if each in chosen else later(*case)
            for each, case in zip(among, cases, strict=True)]  # fmt: skip


def run_python(
    code: str, *, check: bool = True, timeout: float = 120, imported: bool = True, **env: str
):
    """Run code in a Python of its own, without the caller's MGPU_, TF_ and CUDA_ settings.

    It has imported TensorFlow already, without a word, unless `imported` is False.
    """
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests")))
    env = clean(PYTHONPATH=path) | env
    command = [warm_python.program() if imported else sys.executable, "-c", code]
    done = subprocess.run(
        command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=timeout
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """End a test that waits for ever, as a broken runner or launcher does."""

    def stop(number, frame):
        raise TimeoutError(f"{seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def lives(pid: int) -> bool:
    """Say whether a process is there and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_for(true: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until something is true; fail where it does not become so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """Let a command that a test calls here listen to signals no longer than the test."""
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def timed_as_asked(monkeypatch):
    """Let tests time as often as they ask: MGPU_REPEATS is for the notebooks of `make test`."""
    monkeypatch.delenv("MGPU_REPEATS", raising=False)


@pytest.fixture(scope="session")
def plan():
    """Give the plan of this pytest process: two devices, in cores mode."""
    from mgpu_helpers import devices

    os.environ["MGPU_MODE"] = "cores"
    return devices.setup(2)


@pytest.fixture(scope="session")
def tf(plan):
    """Give TensorFlow, which has started with the plan."""
    import tensorflow

    return tensorflow


@pytest.fixture(scope="session")
def keras(tf):
    """Give Keras, on the TensorFlow that has started with the plan."""
    import keras

    return keras


@pytest.fixture
def double(keras):
    """Compute in float64, where rounding would hide a mistake, or be made much of."""
    with fit_models.double():
        yield


@pytest.fixture(scope="session")
def plain(tf, plan):
    """Give TensorFlow's own strategy of two replicas, beside which others may be made."""
    to_one = tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(plan.devices, to_one)


@pytest.fixture(scope="module")
def opened(request, browser):
    """Open the page that a module names, its PAGE, and write down what the browser complains of."""
    page, said = browser.new_page(viewport=DESK), []
    known = "file:", "about:", "data:"
    page.on("pageerror", lambda error: said.append(f"{error}"))
    page.on("console", lambda one: said.append(one.text) if one.type == "error" else None)
    page.on("request", lambda one: None if one.url.startswith(known) else said.append(one.url))
    yield page, said, request.module.PAGE.as_uri()
    page.close()


@pytest.fixture
def page(opened) -> Iterator:
    """Give the page of the module as it is at first, and see that it has no error."""
    page, said, address = opened
    said.clear()
    page.set_viewport_size(DESK)
    page.goto("about:blank")
    page.goto(address)
    yield page
    assert said == []
