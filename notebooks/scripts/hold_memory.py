"""Hold 600 MB of tensors under each memory option, and print what is taken. Lesson 05 runs it.

TensorFlow reads these options once, when it starts, so each has a process of its own. All are
forked from one that has imported TensorFlow and not started it, which saves its import. They see
one GPU, on which nobody else computes, and no other: "nothing set" takes nearly all of every GPU
that it sees. Where there is no such GPU, no option is tried.
"""

from __future__ import annotations

import json
import multiprocessing
import os

from mgpu_helpers import jobs, memory, nvml

OPTIONS = (
    "nothing set",
    "set_memory_growth",
    "TF_FORCE_GPU_ALLOW_GROWTH=true",
    "memory_limit=2048",
    "TF_GPU_ALLOCATOR=cuda_malloc_async",
    "every GPU hidden",
    "allow_growth=True",
    "per_process_gpu_memory_fraction=0.4",
)


def session_config(option: str):
    """Return the ConfigProto of an option that is classic; None for the others."""
    from tensorflow.compat.v1 import ConfigProto

    config = ConfigProto()
    if option.startswith("per_process"):
        config.gpu_options.per_process_gpu_memory_fraction = 0.4
    elif option.startswith("allow_growth"):
        config.gpu_options.allow_growth = True
    else:
        return None
    # or the graph of matrices() becomes one constant
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


def set_today(option: str) -> None:
    """Set an option of today's code on every GPU, or of the environment."""
    if option.startswith("TF_"):
        os.environ.update([option.split("=")])
    import tensorflow as tf

    for gpu in tf.config.list_physical_devices("GPU"):
        if option == "set_memory_growth":
            tf.config.experimental.set_memory_growth(gpu, True)
        if option == "memory_limit=2048":
            limit = tf.config.LogicalDeviceConfiguration(memory_limit=2048)
            tf.config.set_logical_device_configuration(gpu, [limit])
    if option == "every GPU hidden":
        tf.config.set_visible_devices([], "GPU")


def matrices() -> list:
    """Make five matrices of 100 MB: each of another number, so that no graph makes one of them."""
    import tensorflow as tf

    return [tf.fill([1000, 25_000], float(number)) for number in range(5)]


def free_gpu() -> int | None:
    """Choose the freest GPU that this process may use; None where others use them all."""
    kind, numbers = jobs.allowed()
    if kind != "GPU":
        return None
    try:
        (number,) = jobs.freest(1, among=numbers)
    except RuntimeError:  # MIG devices, of which the driver does not say who uses them
        return None
    (gpu,) = (gpu for gpu in nvml.query().gpus if gpu.index == number)
    own = gpu.processes is not None and all(map(is_own, gpu.processes))
    return number if own else None


def is_own(process: nvml.Process) -> bool:
    """Say whether a process is of this user; one that this user cannot see is not."""
    try:
        return os.stat(f"/proc/{process.pid}").st_uid == os.getuid()
    except OSError:
        return False


def hold(option: str, number: int | None, pipe) -> None:
    """Make five matrices and their sum, 600 MB, let go, and send what was taken at each stage."""
    config = session_config(option)
    set_today(option)
    import tensorflow as tf

    before = driver(number)
    stages = [(0, memory.process())]
    made = total = None
    if config:
        with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
            session.run(tf.add_n(matrices()).op)
            stages.append((taken(number, before), memory.process()))
    else:
        made = matrices()
        total = tf.add_n(made)[0, 0].numpy()
        stages.append((taken(number, before), memory.process()))
    del made, total
    stages.append((taken(number, before), memory.process()))
    record = {"option": option, "driver": None, "allocator": None, "before": before}
    by_driver, record["process"] = zip(*stages, strict=True)
    if number is not None and tf.config.list_physical_devices("GPU"):
        record["driver"] = by_driver
        if tf.config.list_logical_devices("GPU"):
            record["allocator"] = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    pipe.send(record)


def taken(number: int | None, before: int) -> int:
    """Return the bytes that this process holds on a GPU, as the driver says.

    Where the driver does not name it, as in a container, what all hold more than before stands in.
    """
    found = (process.memory for gpu in nvml.query().gpus if gpu.index == number
             for process in gpu.processes or () if process.pid == os.getpid())  # fmt: skip
    own = next(found, None)
    return driver(number) - before if own is None else own


def driver(number: int | None) -> int:
    """Return the bytes that all processes hold on a GPU, as the driver says."""
    return sum(gpu.memory_used or 0 for gpu in nvml.query().gpus if gpu.index == number)


if __name__ == "__main__":
    number = free_gpu()
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # so that CUDA means nvidia-smi's number
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1" if number is None else str(number)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tensorflow"])
    for option in OPTIONS:
        if number is None:
            print(json.dumps({"option": option, "driver": None, "process": None}), flush=True)
            continue
        here, there = processes.Pipe()
        process = processes.Process(target=hold, args=(option, number, there))
        process.start()
        there.close()
        try:
            record = here.recv()
        except EOFError:
            raise SystemExit(f"the process with {option!r} ended without a word") from None
        process.join()
        before = record.pop("before")
        record["process"] += (0,)  # it has ended
        if record["driver"]:
            record["driver"] += (driver(number) - before,)
        print(json.dumps(record), flush=True)
