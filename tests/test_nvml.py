"""The GPUs as records: the real pynvml against a stand-in driver, and against none."""

from __future__ import annotations

import json

from conftest import run_python

GIB = 2**30
ASK = "import dataclasses, json, os; from mgpu_helpers import nvml; r = nvml.query(); "
EACH = """
for env in envs:
    os.environ.update(env)
    print(json.dumps(dataclasses.asdict(nvml.query())))
"""


def reports(driver: str, *envs: dict[str, str]) -> list[dict]:
    """Ask in one process after another change of its environment each time."""
    said = run_python(f"envs = {envs}\n{ASK}{EACH}", LD_LIBRARY_PATH=driver).stdout
    return [json.loads(line) for line in said.splitlines()]


def test_three_unequal_gpus(driver):
    (got,) = reports(driver, {})
    assert (got["driver"], got["cuda"], got["reason"]) == ("570.12.3", "12.8", None)
    small, big, odd = got["gpus"]
    assert small == {
        "index": 0, "name": "NVIDIA T400 4GB", "uuid": "GPU-00000000-aaaa",
        "pci_bus_id": "0000:01:00.0", "memory_total": 4 * GIB, "memory_used": GIB,
        "memory_free": 3 * GIB - 512 * 2**20, "utilization": 7, "temperature": 40,
        "power": None, "power_limit": None, "processes": [], "problem": None,
        "parts": [],
    }  # fmt: skip
    assert big["pci_bus_id"] == "0000:3b:00.0"
    assert (big["power"], big["power_limit"], big["utilization"]) == (175.0, 350.0, 88)
    # One process that only draws, one that both lists name, and one without memory and name.
    found = [[p[key] for key in ("pid", "memory", "name", "computes")] for p in big["processes"]]
    assert found == [
        [777, 2**20, None, False],
        [4242, 8 * GIB, "/usr/bin/python3", True],
        [4343, None, None, True],
    ]
    # The memory call fails, and costs nothing else.
    assert (odd["memory_total"], odd["memory_used"], odd["memory_free"]) == (None, None, None)
    assert (odd["name"], odd["index"], odd["temperature"]) == ("NVIDIA GH200 480GB", 2, 42)
    assert (odd["pci_bus_id"], odd["processes"]) == ("10000:02:00.0", [])


def test_a_gpu_that_the_driver_does_not_give_keeps_its_number_and_says_why(driver):
    lost, unknown, refused = (each["gpus"] for each in reports(
        driver, {"FAKE_LOST": "0"}, {"FAKE_LOST": "2", "FAKE_LOST_ERROR": "999"},
        {"FAKE_LOST_ERROR": "4"},  # no permission
    ))  # fmt: skip
    assert [gpu["index"] for gpu in lost] == [0, 1, 2]
    assert lost[0]["name"] == "a GPU that does not say its name"
    assert (lost[0]["memory_free"], lost[0]["processes"]) == (None, None)
    assert "GPU 0" in lost[0]["problem"] and "fallen off the bus" in lost[0]["problem"]
    assert (lost[1]["name"], lost[1]["problem"]) == ("NVIDIA H200", None)
    assert "GPU 2" in unknown[2]["problem"] and '("Unknown Error")' in unknown[2]["problem"]
    assert unknown[2]["processes"] is None and unknown[1]["problem"] is None
    assert (refused[2]["problem"], refused[2]["memory_free"]) == (None, None)


def test_the_driver_is_let_go(driver):
    code = ASK + "nvml.query(); import ctypes; print(ctypes.CDLL('libnvidia-ml.so.1').fake_open())"
    assert run_python(code, LD_LIBRARY_PATH=driver).stdout == "0\n"


def test_a_driver_that_does_not_start_or_has_no_gpus_says_so(driver):
    errors = {"9": "sudo modprobe nvidia", "18": "reboot", "12345": '("a new kind of error")'}
    none, *failed = reports(driver, {"FAKE_GPUS": "0"}, *({"FAKE_INIT": each} for each in errors))
    assert none["gpus"] == [] and "570.12.3 is loaded" in none["reason"]
    for got, reason in zip(failed, errors.values(), strict=True):
        assert (got["gpus"], got["driver"]) == ([], None) and reason in got["reason"]


def test_no_pynvml():
    hide = "import sys; sys.modules['pynvml'] = None; "
    done = run_python(hide + ASK + "print(r.gpus, r.reason)")
    assert done.stdout.startswith("() ") and "pip install nvidia-ml-py" in done.stdout
