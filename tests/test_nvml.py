"""The GPUs as records: the real pynvml against a stand-in driver, and against none."""

from __future__ import annotations

import json

import pytest

from conftest import run_python

GIB = 2**30
ASK = "import dataclasses, json; from mgpu_helpers import nvml; r = nvml.query(); "
PRINT = "print(json.dumps(dataclasses.asdict(r)))"


def report(driver: str, **env: str) -> dict:
    return json.loads(run_python(ASK + PRINT, LD_LIBRARY_PATH=driver, **env).stdout)


def test_three_unequal_gpus(driver):
    got = report(driver)
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


def test_a_lost_gpu_keeps_its_number(driver):
    gpus = report(driver, FAKE_LOST="0")["gpus"]
    assert [gpu["index"] for gpu in gpus] == [0, 1, 2]
    assert gpus[0]["name"] == "a GPU that does not say its name"
    assert (gpus[0]["memory_free"], gpus[0]["processes"]) == (None, None)
    assert "GPU 0" in gpus[0]["problem"] and "fallen off the bus" in gpus[0]["problem"]
    assert (gpus[1]["name"], gpus[1]["problem"]) == ("NVIDIA H200", None)


def test_a_gpu_that_the_driver_does_not_give_says_why(driver):
    gpus = report(driver, FAKE_LOST="2", FAKE_LOST_ERROR="999")["gpus"]
    assert "GPU 2" in gpus[2]["problem"] and '("Unknown Error")' in gpus[2]["problem"]
    assert gpus[2]["processes"] is None and gpus[1]["problem"] is None
    others = report(driver, FAKE_LOST="2", FAKE_LOST_ERROR="4")["gpus"][2]  # no permission
    assert (others["problem"], others["memory_free"]) == (None, None)


def test_the_driver_is_let_go(driver):
    code = ASK + "nvml.query(); import ctypes; print(ctypes.CDLL('libnvidia-ml.so.1').fake_open())"
    assert run_python(code, LD_LIBRARY_PATH=driver).stdout == "0\n"


@pytest.mark.parametrize("error, reason", [
    (9, "sudo modprobe nvidia"), (18, "reboot"), (12345, '("a new kind of error")'),
])  # fmt: skip
def test_a_driver_that_does_not_start(driver, error, reason):
    got = report(driver, FAKE_INIT=str(error))
    assert (got["gpus"], got["driver"]) == ([], None) and reason in got["reason"]


def test_a_driver_without_gpus(driver):
    got = report(driver, FAKE_GPUS="0")
    assert got["gpus"] == [] and "570.12.3 is loaded" in got["reason"]


def test_no_pynvml():
    hide = "import sys; sys.modules['pynvml'] = None; "
    done = run_python(hide + ASK + "print(r.gpus, r.reason)")
    assert done.stdout.startswith("() ") and "pip install nvidia-ml-py" in done.stdout
