"""`mgpu verdict`: run the lessons on this machine's GPUs, and say what held."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

try:
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from nbformat import NotebookNode
except ImportError as error:
    raise SystemExit(f'{error}: pip install "mgpu-helpers[notebooks]".') from None

from mgpu_helpers import jobs, nvml
from mgpu_helpers._formatting import counted
from mgpu_helpers.devices import trial
from mgpu_helpers.lessons.command import copy

DESCRIPTION = """\
Run the lessons on this machine's GPUs, from a copy that is thrown away, and say what held. First a
process of its own warms the GPUs, so that a machine on which TensorFlow uses none, or on which XLA
ends the process, is told so in a sentence. Then every lesson runs twice, from its first cell to its
last: on all GPUs (or MGPU_DEVICES of them), where kernels are compiled and no time counts, and on
as many devices as its stored outputs have. What it says there is held against these line by line:
they come from cores, so devices have other names and timings other numbers, and whatever else
differs is named. In both no cell may fail, no True may become False and no solution may be refused;
in the second none may take over a minute. The exit status is 1 where something did not hold, and
without a GPU. MGPU_MODE=cores rehearses the second run without a GPU.
"""

MOST = 8  # devices, for which the lessons are made
SLOW = 60  # seconds for a cell, when the kernels are compiled
GIVE_UP = 900
ON_GPUS = ("gpus", "split-gpu")
STANDS_IN = 'os.environ["MGPU_MODE"] = "cores"'  # a lesson that shares out whole GPUs, with one
# What may differ between a stored output and a new one; the tests compare by it too.
SANITIZE = Path(__file__).parent / "nbval_sanitize.cfg"

# What differs lawfully on a GPU: nothing in it is a proof.
LAWFUL = [
    (re.compile(regex, re.MULTILINE), put)
    for regex, put in (
        *re.findall(r"^regex: (.*)\n^replace: (.*)$", SANITIZE.read_text("utf-8"), re.MULTILINE),
        (r"^mode +(?:gpus|split-gpu): .*$", "mode GPU"),
        (r"^(devices +| {9})(/[CG]PU:\d+)  .*$", r"\1\2"),  # the plan's: what a device really is
        (r"^float32  TF32 is off: .*\n?", ""),
        (r"GPU:(\d+)", lambda found: f"CPU:{int(found[1]) + 1}"),  # /GPU:0 stands for /CPU:1
        # Lesson 12: cuDNN may choose another kernel for a part than for the whole.
        (r"(?<!\S)(?:0|\de-0[6-9]) apart", "0 apart"),
    )
]  # fmt: skip

# Not judged: the kernels are compiled, and their driver keeps them on disk. The last line is for
# this program. XLA comes first because it ends the process on GPUs that it does not know.
WARM = """
import json, sys
from mgpu_helpers import _doctor, devices, trace
from mgpu_helpers.lessons import digits, networks
plan = devices.setup(int(sys.argv[1]), exact=True)
print(plan, flush=True)
if not plan.on_gpus:
    causes = _doctor.diagnose(_doctor.gather())
    sys.exit("TensorFlow uses no GPU here. " + " ".join(causes))
import keras
import tensorflow as tf
for device in plan.devices:
    with tf.device(device):
        tf.function(lambda x: x @ x + 1, jit_compile=True)(tf.ones([8, 8])).numpy()
print("XLA works", flush=True)
images, labels = digits.load(128)
network = networks.tensorlight(0.125)
for device in plan.devices:
    weights = networks.variables(network, device=device)
    with tf.device(device):
        with tf.GradientTape() as tape:
            loss = networks.loss(labels, networks.logits(network, weights, images))
        tape.gradient(loss, list(weights.values()))
        print(f"{device} warm, loss {loss:.2f}", flush=True)
kinds = []
if len(plan) > 1:
    with tf.distribute.MirroredStrategy(plan.devices).scope():
        images = keras.Input([28, 28, 1])
        scores = keras.layers.Dense(10)(keras.layers.Flatten()(images))
        model = keras.Model(images, scores)
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = tf.data.Dataset.from_tensor_slices(digits.load(16 * len(plan))).batch(16 * len(plan))
    step = trace.fit_step(model, data)
    kinds = sorted({each.by for each in step.collectives} - {""})
print("all-reduce over", len(plan), "devices:", kinds or "none", flush=True)
print(json.dumps({"mode": plan.mode, "devices": len(plan), "all_reduce": kinds}))
"""


@dataclass
class Verdict:
    """What held and what did not, in sentences that name the lesson and the cell."""

    cells: int = 0
    proofs: int = 0  #: lines held against stored ones
    solutions: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    found: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        held = (
            f"{len(self.seconds)} lessons, {self.cells} cells, {self.proofs} proofs, "
            f"{self.solutions} solutions, {sum(self.seconds.values()):.0f} s"
        )
        if not self.found:
            return f"verdict: all of it held ({held})"
        return "\n".join([f"verdict: {len(self.found)} did not hold ({held})", *self.found])


def text_of(cell: NotebookNode) -> str:
    """Return what a code cell printed or gave as text; figures' own descriptions do not count."""
    pieces = []
    for output in cell.outputs:
        data = output.get("data", {})
        if "text" in output:
            pieces.append(output.text)
        elif not any(kind.startswith("image/") for kind in data):
            pieces += [data[kind] for kind in ("text/plain", "text/markdown") if kind in data]
    return "\n".join(pieces)


def tags(cell: NotebookNode) -> list[str]:
    """Return a cell's tags; an empty list when it has none."""
    return list(cell.metadata.get("tags", []))


def merged(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Give outputs as they are stored: whole lines, and nothing of stderr, as of the machine."""
    said = [output for output in outputs if output.get("name") == "stdout"]
    if said:
        said[0].text = re.sub(r"[^\n]*\r(?!\n)", "", "".join(output.text for output in said))
    return [each for each in outputs if each.output_type != "stream" or each in said[:1]]


def run(notebook: NotebookNode, folder: Path, **settings: str) -> Iterator[tuple[int, float, str]]:
    """Run every code cell in place; give its number, its seconds and what went wrong, if anything.

    A cell that fails does not stop the others; a kernel that dies or hangs does.
    """
    client = NotebookClient(
        notebook, kernel_name="python3", timeout=GIVE_UP, record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as ipython:
        kept = {name: value for name, value in os.environ.items() if name != "MGPU_DEVICES"}
        env = kept | {"IPYTHONDIR": ipython, "PYTEST_CURRENT_TEST": "verdict"} | settings
        with client.setup_kernel(env=env, stderr=subprocess.DEVNULL):
            for number, cell in enumerate(notebook.cells, 1):
                if cell.cell_type != "code":
                    continue
                began, wrong = time.perf_counter(), ""
                try:
                    client.execute_cell(cell, number - 1)
                except CellExecutionError as error:
                    wrong = f"fails: {error.ename}: {error.evalue.strip().splitlines()[-1:]}"
                except (CellTimeoutError, DeadKernelError) as error:
                    yield number, time.perf_counter() - began, f"ends the lesson: {error}"
                    return
                cell.outputs = merged(cell.outputs)
                yield number, time.perf_counter() - began, wrong


def proofs(cell: NotebookNode) -> list[str]:
    """List the lines of a cell that have to be the same on every machine, as cores mode says them.

    A stub's hint is none, nor is what the tests do not compare either.
    """
    if {"exercise", "nbval-ignore-output"} & set(tags(cell)):
        return []
    text = text_of(cell)
    for pattern, put in LAWFUL:
        text = pattern.sub(put, text)
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def judge(stored: NotebookNode, now: NotebookNode, mode: str = "cores") -> str:
    """Say what a cell says now and should not, by its stored output; "" when all is well.

    `mode` is the one in which it ran: on GPUs what nobody placed is on the first of them.
    """
    if wrong := broken(stored, now):
        return wrong
    if "exercise" in tags(stored) and "not yet" not in text_of(now):
        return "takes an exercise that nobody has done"
    before, after = proofs(stored), proofs(now)
    if mode in ON_GPUS:
        before = [re.sub(r"^mode +cores: .*$", "mode GPU", line) for line in before]
        if "unplaced" in tags(stored):
            before = [line.replace("CPU:0", "CPU:1") for line in before]
    pairs = zip_longest(before, after, fillvalue="nothing")
    other = (f"says {says!r}, and stored is {was!r}" for was, says in pairs if says != was)
    return next(other, "")


def broken(stored: NotebookNode, now: NotebookNode) -> str:
    """Say what a cell says now that no number of devices allows; "" when all is well."""
    before, after = text_of(stored).splitlines(), text_of(now).splitlines()
    refused = [line for line in after if line.startswith("not yet")]
    if "solution" in tags(stored) and (refused or not any(x.startswith("yes") for x in after)):
        return f"refuses its own solution: {' '.join(refused) or 'it says nothing'}"

    held: dict[tuple[str, int], set[str]] = {}
    for line in before:
        for key, value in claims(line):
            held.setdefault(key, set()).add(value)
    said = {value for values in held.values() for value in values}  # of what has no words before
    new = [line for line in after if any(value == "False" and held.get(key, said) == {"True"}
                                         for key, value in claims(line))]  # fmt: skip
    return f"prints False: {'; '.join(new)}" if new else ""


def claims(line: str) -> Iterator[tuple[tuple[str, int], str]]:
    """Give each True and False of a line, after what it is about: its words, without numbers."""
    words = re.sub(r"\[[^]]*\]|/[CG]PU:\d+|[\d.,]+|\b(?:True|False)\b| +", " ", line)
    for place, value in enumerate(re.findall(r"\b(?:True|False)\b", line)):
        yield (" ".join(words.split()), place), value


def emptied(path: Path) -> tuple[NotebookNode, NotebookNode]:
    """Read a notebook as it is stored, and without what its cells say."""
    stored, now = (nbformat.read(path, as_version=4) for _ in range(2))
    for cell in now.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    return stored, now


def warm_lesson(path: Path, verdict: Verdict, count: int) -> None:
    """Run a notebook on so many devices, and add to the verdict what no number of them allows."""
    stored, now = emptied(path)
    for number, _, wrong in run(now, path.parent, MGPU_DEVICES=str(count)):
        if wrong := wrong or broken(stored.cells[number - 1], now.cells[number - 1]):
            on = counted(count, "device")
            verdict.found.append(f"  {path.stem}, cell {number}, on {on}: {wrong}")


def try_lesson(path: Path, verdict: Verdict, mode: str) -> NotebookNode:
    """Run a notebook as it is stored, add to the verdict, and give it as it is now.

    `mode` is that of the plan that it should get.
    """
    stored, now = emptied(path)
    stands_in = any(STANDS_IN in cell.source for cell in stored.cells)
    for number, seconds, wrong in run(now, path.parent):
        was, cell = stored.cells[number - 1], now.cells[number - 1]
        if stands_in and re.search(r"^mode +cores:", text_of(cell), re.MULTILINE):
            mode = "cores"
        verdict.cells += 1
        verdict.proofs += len(proofs(was))
        verdict.solutions += "solution" in tags(was)
        verdict.seconds[path.stem] = verdict.seconds.get(path.stem, 0) + seconds
        wrong = wrong or judge(was, cell, mode)
        if not wrong and seconds > SLOW:
            wrong = f"takes {seconds:.0f} s"
        if wrong:
            verdict.found.append(f"  {path.stem}, cell {number}, {wrong}")
    return now


def warm(count: int) -> dict[str, Any]:
    """Warm so many devices, or MGPU_DEVICES, in a process of its own; give what it found out.

    The process is asked for NCCL's version, which NCCL prints when it begins to work: so an
    all-reduce that names none did not use it. SystemExit has the sentence where no GPU works.
    """
    env = os.environ | {"NCCL_DEBUG": "VERSION"}
    command = [sys.executable, "-c", WARM, str(count)]
    done = subprocess.run(command, text=True, capture_output=True, env=env)
    said = done.stdout.splitlines()
    if done.returncode:
        print(*said, sep="\n")
        words = ([line for line in done.stderr.splitlines() if line.strip()] or ["no word"])[-1]
        if "TensorFlow uses no GPU here" in words:
            raise SystemExit(words)
        how = f"exit status {done.returncode}"
        if done.returncode < 0:
            how = signal.Signals(-done.returncode).name
        todo = "the first steps", "MGPU_VERBOSE=1 make gpu may show more"
        if said and "XLA works" not in said:
            todo = "XLA", trial.WITHOUT_XLA
        raise SystemExit(f"The GPUs do not work: {todo[0]} ended with {how} ({words}): {todo[1]}.")
    facts = next(line for line in said if line.startswith("{"))
    print(*(line for line in said if line != facts), sep="\n", flush=True)
    found = json.loads(facts)
    version = re.search(r"^NCCL version (\S+)", done.stdout, re.MULTILINE)
    hints = ", ".join(found["all_reduce"])
    found["all_reduce"] = f"NCCL {version[1]}" if version else hints or "none, on one device"
    return found


def chosen(folder: Path, numbers: list[str]) -> list[Path]:
    """List the lessons of a folder with these numbers, all without; no lesson is an error."""
    paths = sorted(folder.glob("*.ipynb"))
    known = [path.name[:2] for path in paths]
    strangers = [number for number in numbers if number not in known]
    if strangers or not paths:
        what = f"no lesson {', '.join(strangers)}" if strangers else "no lesson"
        raise SystemExit(f"There is {what} in {folder}: it has {', '.join(known) or 'none'}.")
    return [path for path in paths if not numbers or path.name[:2] in numbers]


def found_on_gpus(lessons: list[Path], verdict: Verdict) -> tuple[dict[str, Any], dict[str, Any]]:
    """Add to the verdict what the lessons do on all GPUs; give facts of these, and the lessons.

    SystemExit has the sentence where there is none.
    """
    driver = nvml.query()
    if not driver.gpus:
        why = (driver.reason or "").rstrip(".")
        raise SystemExit(f"There is no GPU here ({why}): MGPU_MODE=cores rehearses this.")
    found = warm(min(len(jobs.allowed()[1]), MOST))
    for path in lessons:
        warm_lesson(path, verdict, found["devices"])
    return found, {path.stem: try_lesson(path, verdict, found["mode"]) for path in lessons}


def rehearse(lessons: list[Path], verdict: Verdict) -> bool:
    """Run the lessons on cores where MGPU_MODE=cores asks for it, and say whether it does."""
    if os.environ.get("MGPU_MODE") != "cores":
        return False
    for path in lessons:
        try_lesson(path, verdict, "cores")
    print("MGPU_MODE=cores is a rehearsal without GPUs.")
    return True


def main(arguments: Sequence[str], called: str) -> int:
    """Run the lessons from a copy, print the verdict, and return the exit status."""
    parser = argparse.ArgumentParser(called, description=DESCRIPTION)
    parser.add_argument("numbers", nargs="*", metavar="NN", help="lessons; all without")
    numbers, verdict = parser.parse_args(arguments).numbers, Verdict()
    with tempfile.TemporaryDirectory() as folder:
        copy(folder)
        lessons = chosen(Path(folder) / "notebooks", numbers)
        if not rehearse(lessons, verdict):
            found_on_gpus(lessons, verdict)
    print(verdict)
    return 1 if verdict.found else 0
