"""Why TensorFlow does not use a GPU that is there, and why it does not start: sentences."""

from __future__ import annotations

import sys

from mgpu_helpers.doctor.facts import LIBRARIES, Facts
from mgpu_helpers.wording import counted, error_line

INSTALL = 'pip install "mgpu-helpers[gpu]" (in the project: make lab GPU=1)'


def diagnose(facts: Facts) -> list[str]:
    """Say which GPUs are lost, why TensorFlow does not use one that is there, and what to do.

    Gives a sentence for each cause, and for what is wrong with TF_CONFIG; [] where every GPU that
    works is used.

    >>> from mgpu_helpers.doctor import gather, with_tensorflow
    >>> causes = diagnose(with_tensorflow(gather()))
    """
    return _gpus(facts) + list(facts.cluster or ())


def _gpus(facts: Facts) -> list[str]:
    tf, driver, there = facts.tensorflow, facts.driver, facts.there
    causes = [gpu.problem for gpu in driver.gpus if gpu.problem]
    if tf is None or facts.seen >= there - len(causes):
        return causes
    which = {1: "the GPU"}.get(there, f"all {there} GPUs")
    if not driver.gpus:
        causes.append(f"{counted(there, 'NVIDIA GPU')} on the PCI bus. {driver.reason}")
    if tf.cuda is None:
        causes.append(_wrong_wheel(facts))
    elif driver.cuda and _major(driver.cuda) < _major(tf.cuda):
        causes.append(
            f"The driver {driver.driver} supports CUDA up to {driver.cuda} and TensorFlow was "
            f"built with {tf.cuda}: install a newer driver, for CUDA 12 version 525 or later, "
            "for Hopper and newer GPUs 555."
        )
    if facts.visible is not None and driver.gpus:
        left = facts.lesson_order
        shown = len(left) if left is not None else 0 if _hides_all(facts.visible) else there
        if shown < there:
            does = f"hides {which}" if not shown else f"leaves {shown} of {there} GPUs"
            causes.append(
                f'CUDA_VISIBLE_DEVICES="{facts.visible}" {does}: to use them all, unset it before '
                "Python or Jupyter starts."
            )
    if facts.missing:
        packages = sorted({LIBRARIES[name] for name in facts.missing})
        if set(packages) <= set(facts.packages):
            todo = f"pip install --force-reinstall {' '.join(packages)}"
        else:
            todo = INSTALL
        names = " and ".join(facts.missing)
        if len(facts.missing) > 2:
            names = f"{facts.missing[0]} and {len(facts.missing) - 1} more CUDA libraries"
        causes.append(f"TensorFlow cannot load {names}: {todo}.")
    if driver.gpus and facts.cuda_error is not None:
        causes.append(_cuda_does_not_start(facts.cuda_error))
    if not causes:
        causes.append(
            f"TensorFlow sees {facts.seen} of {counted(there, 'GPU')} for a reason not known here: "
            "MGPU_VERBOSE=1 python -m mgpu_helpers shows what it says itself."
        )
    return causes


def explain(problem: Exception) -> str:
    """Say in one sentence why there is no plan, and what to do.

    >>> explain(ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow"))
    'TensorFlow is not installed: pip install mgpu-helpers (in the project: make lab).'
    """
    first = error_line(problem).rstrip(".:")
    if isinstance(problem, ModuleNotFoundError) and problem.name == "tensorflow":
        return "TensorFlow is not installed: pip install mgpu-helpers (in the project: make lab)."
    if _ours(problem):
        return f"{first}."
    if isinstance(problem, ImportError) or "tensorflow" not in sys.modules:
        return (
            f"TensorFlow cannot be imported ({first}): pip install --force-reinstall tensorflow "
            "(in the project: remove .venv, then make lab)."
        )
    return (
        f"TensorFlow does not start ({first}): MGPU_MODE=cores runs the lessons without a GPU, "
        "MGPU_VERBOSE=1 python -m mgpu_helpers shows more."
    )


def _ours(problem: Exception) -> bool:
    """Tell an error that this package raised, a sentence, from one that came through it."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = trace.tb_frame.f_globals.get("__name__", "") if trace else ""
    return name.startswith("mgpu_helpers.")


def _wrong_wheel(facts: Facts) -> str:
    if facts.system == "win32":
        return "TensorFlow for Windows is built for the CPU only: use WSL2, and make lab in it."
    if facts.system == "linux" and facts.machine not in ("x86_64", "AMD64"):
        return (
            f"TensorFlow for Linux on {facts.machine} is built for the CPU only: use a build with "
            "CUDA, such as NVIDIA's container or conda-forge's package."
        )
    if "tensorflow-cpu" in facts.versions:
        return f"tensorflow-cpu has no CUDA: pip uninstall tensorflow-cpu, then {INSTALL}."
    return (
        f"This TensorFlow is built for the CPU only: pip uninstall tensorflow, then {INSTALL}, "
        "or conda-forge's package for CUDA."
    )


def _cuda_does_not_start(error: int | str) -> str:
    if error == "library":
        return (
            "The driver's library libcuda.so.1 is not here: in a container set "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility, else install the driver again."
        )
    if error == "silent":
        return "CUDA does not answer when it is started: reboot."
    remedies: dict[int | str, str] = {
        802: "sudo systemctl start nvidia-fabricmanager",
        803: "reboot, as the driver was updated while the old one is still loaded",
        999: "sudo modprobe nvidia_uvm, or reboot",
    }
    remedy = remedies.get(error, "see what nvidia-smi says, and reboot if it says nothing")
    return f"CUDA does not start (error {error}): {remedy}."


def _hides_all(visible: str) -> bool:
    return visible.split(",")[0].strip() in ("", "-1")


def _major(version: str) -> int:
    return int(version.split(".")[0])
