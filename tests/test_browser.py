"""Every notebook in a real JupyterLab, in Chromium, by a GPU machine's rules: ``-m browser``.

What nobody placed goes to the first device, and Keras compiles with XLA (see gpu_rule.py). oneDNN
is on if this processor has it off, and off if it has it on. Each cell has to say what is stored.
ipykernel captures here what C code writes, as it does for readers and not under nbval; so this is
where TensorFlow's start-up noise would be seen.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest
from nbval.plugin import coalesce_streams

import warm_python
from build_notebooks import said, sanitizing
from conftest import longest_first, run_python
from lessons import CLOSED, METADATA, NOTEBOOKS, ROOT, environment, tags

pytestmark = pytest.mark.browser

NAMES = [path.stem for path in longest_first(NOTEBOOKS)]
SCREENSHOTS = ROOT / "build" / "browser"
START_TIMEOUT, RUN_TIMEOUT = 90, 600  # seconds
POLL = 250  # milliseconds: asking at every frame would take a core from the notebook
WIDGET = "application/vnd.jupyter.widget-view+json"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
# Cells out of sight are drawn too, and nothing is asked of the reader or of the network.
SETTINGS = {
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}


class Lab(NamedTuple):
    """A running JupyterLab and the folder that it serves; ``url`` ends with a slash."""

    url: str
    token: str
    folder: Path


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[Lab]:
    """Serve a copy of the notebooks, with settings and kernels of its own, on the loopback."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(NOTEBOOKS, folder / "notebooks", ignore=shutil.ignore_patterns("source"))
    shutil.copytree(ROOT / "results", folder / "results")
    for name, values in SETTINGS.items():
        path = folder / "settings" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    startup = folder / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "rule.py").write_text("import gpu_rule\ngpu_rule.install()\n")
    code = "from mgpu_helpers import _private; print(_private.uses_onednn())"
    other = {"True\n": "0", "False\n": "1"}[run_python(code).stdout]
    env = environment() | {
        "IPYTHONDIR": str(folder / "ipython"), "MGPU_REPEATS": "1", "TF_ENABLE_ONEDNN_OPTS": other,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(Path(__file__).parent))),
    }  # fmt: skip
    env.pop(warm_python.FOLDER, None)  # nothing would be heard of TensorFlow's start
    for name in ("_CONFIG", "_DATA", "_RUNTIME", "LAB_SETTINGS", "LAB_WORKSPACES"):
        env[f"JUPYTER{name}_DIR"] = str(folder / name.partition("_")[2].lower())
    log = folder / "log.txt"
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
        *("--ServerApp.ip=127.0.0.1", "--ServerApp.port=0", "--LabApp.expose_app_in_browser=True"),
    ]
    with log.open("w") as out:
        server = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=out)
    try:
        end = time.monotonic() + START_TIMEOUT
        # A file may be there before what it says is.
        runtime = folder / "runtime"
        while not any(said := [path.read_text() for path in runtime.glob("jpserver-*.json")]):
            if server.poll() is not None or time.monotonic() > end:
                pytest.fail(f"JupyterLab does not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.2)
        facts = json.loads(said[0])
        yield Lab(f"http://127.0.0.1:{facts['port']}/", facts["token"], folder / "notebooks")
    finally:
        server.terminate()  # and it ends its kernels
        server.wait(30)


@pytest.fixture(scope="module")
def browser():
    """Start Chromium; without one, skip, or fail where CI is set."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        missing = pytest.fail if os.environ.get("CI") else pytest.skip
        missing("no Chromium on PATH: install Debian's chromium or Google Chrome")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield chromium
        chromium.close()


# What the page knows of the open notebook, in JupyterLab's own words.
CONNECTED = """() => {
    const session = window.jupyterapp?.shell.currentWidget?.context?.sessionContext?.session;
    return session?.kernel?.connectionStatus === 'connected';
}"""
CLEARED = """() => window.jupyterapp.shell.currentWidget.context.model.toJSON().cells
    .every(cell => cell.cell_type !== 'code' || cell.execution_count === null)"""
FINISHED = """() => {
    const cells = window.jupyterapp.shell.currentWidget.context.model.toJSON().cells
        .filter(cell => cell.cell_type === 'code');
    return cells.every(cell => cell.execution_count !== null)
        || cells.some(cell => cell.outputs.some(output => output.output_type === 'error'));
}"""
CELLS = "() => window.jupyterapp.shell.currentWidget.context.model.toJSON().cells"
DRAWN = """count => {
    const pictures = [...document.querySelectorAll('.jp-NotebookPanel img')];
    return pictures.length >= count && pictures.every(one => one.complete && one.naturalWidth > 0);
}"""


def run_all(page, lab: Lab, name: str, closed: int) -> list:
    """Open a notebook, clear its outputs, click Run All; return its cells when all have run.

    So many headings have to be closed when it opens. Run All opens the last one: it goes there.
    """
    page.goto(f"{lab.url}lab/tree/notebooks/{name}.ipynb?reset&token={lab.token}")
    page.wait_for_function(CONNECTED, timeout=START_TIMEOUT * 1000, polling=POLL)
    shut = ".jp-collapseHeadingButton.jp-mod-collapsed"
    of_them = f"document.querySelectorAll('{shut}').length"
    page.wait_for_function(f"{of_them} == {closed}", timeout=10_000, polling=POLL)
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    page.wait_for_function(CLEARED, polling=POLL)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator('.lm-Menu-item[data-command="runmenu:run-all"]').click()
    page.wait_for_function(FINISHED, timeout=RUN_TIMEOUT * 1000, polling=POLL)
    return page.evaluate(CELLS)


def complaints(cells: list) -> Iterator[str]:
    """Say which cells end in an error or write to stderr."""
    for number, cell in enumerate(cells, 1):
        for output in cell.get("outputs", []):
            if output["output_type"] == "error":
                yield f"cell {number} ends with {output['ename']}: {output['evalue']}"
            elif output.get("name") == "stderr":
                yield f"cell {number} writes to stderr: {output['text']!r}"


def as_a_gpu_machine_says(stored: list) -> list:
    """Let the outputs of cells tagged `unplaced`, which are about that, name the first device."""
    text = nbformat.writes(nbformat.v4.new_notebook(cells=stored))
    cells = nbformat.reads(text, as_version=4).cells
    for cell in cells:
        if "unplaced" in tags(cell):
            text = json.dumps(cell.outputs).replace("CPU:0", "CPU:1")
            cell.outputs = nbformat.from_dict(json.loads(text))
    return cells


def differences(cells: list, stored: list) -> Iterator[str]:
    """Say which cells say something else than what is stored, as nbval would."""
    patterns = sanitizing()

    def heard(cell: nbformat.NotebookNode) -> list[tuple[str | None, str, str]]:
        cell.outputs = coalesce_streams(cell.outputs)
        return [
            (name, kind, text)
            for _, name, kind, text in said(cell, patterns)
            if not kind.startswith(("image/png", "application/"))
        ]

    pairs = zip(map(nbformat.from_dict, cells), stored, strict=True)
    for number, (cell, was) in enumerate(pairs, 1):
        # A widget is there only with a browser; nbval gets the picture alone.
        shown = any(WIDGET in output.get("data", {}) for output in cell.get("outputs", []))
        if was.cell_type == "code" and "nbval-ignore-output" not in tags(was) and not shown:
            if heard(cell) != (wanted := heard(was)):
                yield f"cell {number} says {heard(cell)}, and stored is {wanted}"


def count_pictures(cells: list) -> int:
    """Count the PNGs in the outputs of cells, and the drawings between them."""
    drawings = sum("](pictures/" in cell["source"] for cell in cells)
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return drawings + sum("image/png" in output.get("data", {}) for output in outputs)


def check(browser, lab: Lab, name: str, stored: list, screenshots: Path) -> None:
    """Run a notebook to its end without a complaint; keep a screenshot when that fails."""
    page = browser.new_page(viewport={"width": 1400, "height": 2000})
    try:
        cells = run_all(page, lab, name, sum(cell.metadata == CLOSED for cell in stored))
        assert list(complaints(cells)) == []
        assert count_pictures(cells) == count_pictures(stored)
        page.wait_for_function(DRAWN, arg=count_pictures(cells), timeout=10_000, polling=POLL)
        assert list(differences(cells, stored)) == []
        if panels := sum("drawings.panel(" in cell.source for cell in stored):
            page.wait_for_selector(".widget-slider", state="attached", timeout=10_000)
            assert page.locator(".jupyter-widgets.widget-interact").count() == panels
    except BaseException:
        screenshots.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=screenshots / f"{name}.png")
        raise
    finally:
        page.evaluate("() => window.jupyterapp?.serviceManager.sessions.shutdownAll()")
        page.close()


@pytest.mark.parametrize("name", NAMES)
def test_says_in_jupyterlab_what_is_stored(browser, lab: Lab, name: str):
    stored = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells
    check(browser, lab, name, as_a_gpu_machine_says(stored), SCREENSHOTS)


@pytest.mark.parametrize(
    "source, said",
    [
        ("1 / 0", "ends with ZeroDivisionError: division by zero"),
        # A thread of ipykernel passes it on, and may come late where other work runs.
        ("import os, time; os.write(2, b'noise from C'); time.sleep(2)",
         "writes to stderr: 'noise from C'"),
        ("from IPython.display import HTML; HTML('<img src=nothing.png>')", "Timeout 10000ms"),
        ("print('something else')", "cell 1 says"),
    ],
    ids=["error", "noise", "picture", "output"],
)
def test_what_must_not_pass_is_seen(browser, lab: Lab, tmp_path, source: str, said: str):
    cells = [nbformat.v4.new_code_cell(source)]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=METADATA)
    nbformat.write(notebook, lab.folder / "bad.ipynb")
    with pytest.raises(Exception, match=said):
        check(browser, lab, "bad", cells, tmp_path)
    assert (tmp_path / "bad.png").stat().st_size > 10_000


def test_what_nobody_placed_is_seen(browser, lab: Lab, tmp_path):
    """In lesson 06, in which a cell counts the products that the host computes."""
    (name,) = (name for name in NAMES if name.startswith("06"))
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("tf.device(plan.host)", "tf.name_scope('nobody')")
    nbformat.write(notebook, lab.folder / "bad.ipynb")
    with pytest.raises(AssertionError, match="cell .* says"):
        check(browser, lab, "bad", as_a_gpu_machine_says(notebook.cells), tmp_path)


COMPILED = """
import gpu_rule
from mgpu_helpers import devices

gpu_rule.install()
plan = devices.setup(2)
import keras, numpy as np, tensorflow as tf

with tf.device(plan.devices[1]):
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
model.compile("sgd", "mse")
with tf.device(plan.devices[1]):
    model.train_on_batch(np.ones([4, 3]), np.ones([4, 2]))
"""


def test_the_rules_notice_a_model_that_is_compiled_elsewhere():
    """As lesson 18 once did: the metrics were on the first device, and the weights on the last."""
    done = run_python(COMPILED, MGPU_MODE="cores", check=False)
    assert done.returncode and "located in device" in done.stderr
