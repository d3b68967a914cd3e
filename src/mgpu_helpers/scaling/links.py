"""What lies between two devices: bandwidths with their sources, and what a message costs.

Latencies are what one step of a ring takes by the model with which NCCL chooses its algorithm:
ring, simple protocol, in NVIDIA/nccl src/graph/tuning.cc (b647562).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """A link between devices: bytes a second, plausibly from low to high; seconds a message.

    >>> bus = Link("my bus", bandwidth=8e9, low=5e9, high=12e9, latency=5e-6, source="measured")
    """

    name: str
    bandwidth: float
    low: float
    high: float
    latency: float
    source: str = ""

    def __post_init__(self) -> None:
        if not (0 < self.low <= self.bandwidth <= self.high < math.inf and self.latency >= 0):
            raise ValueError(f"{self}: use 0 < low <= bandwidth <= high, latency >= 0.")


_SOURCE = "NVIDIA/nccl src/graph/topo.h and tuning.cc (b647562), and "
#: PCI Express 3.0 with 16 lanes, by way of the host. The lowest is through shared memory between
#: two sockets. Between the ends a guess, near the 8.2 GB/s that the tensorlight rows fit.
PCIE_3 = Link("PCIe 3.0 x16", 8e9, 5e9, 12e9, 5.7e-6, _SOURCE +
              "developer.nvidia.com/blog/scaling-deep-learning-training-nccl")  # fmt: skip
#: NVLink 2, as between V100: 6 links of 20 GB/s, 25 by the data sheet. The lowest is a guess.
NVLINK_2 = Link("NVLink 2 (V100)", 120e9, 100e9, 150e9, 3.4e-6,
                _SOURCE + "NVIDIA's data sheet of V100")  # fmt: skip
#: NVLink 3, as between the GPUs of a machine with 8 A100: 12 links of 20 GB/s. All-reduces on 8
#: A100 gave 232.5 GB/s (issue 175) and about 200 (issue 149).
NVLINK_3 = Link("NVLink 3 (A100)", 230e9, 200e9, 240e9, 3.4e-6,
                _SOURCE + "NVIDIA/nccl-tests issues 149 and 175")  # fmt: skip
#: Ethernet of 10 and of 25 Gbit a second, between machines. TCP carries 95.6 % of it in this
#: project's benchmark of links (docs/benchmarks.md). The lowest are guesses.
_TCP = _SOURCE + "results/link.json"
ETHERNET_10G = Link("10 Gbit Ethernet", 1.19e9, 0.9e9, 1.25e9, 14e-6, _TCP)
ETHERNET_25G = Link("25 Gbit Ethernet", 2.98e9, 2e9, 3.125e9, 14e-6, _TCP)
#: Ethernet of 100 Gbit a second, between machines: 60 Gbit/s in a ring on AWS (issue 22), 4 to 6
#: GB/s over TCP (issue 450).
ETHERNET_100G = Link("100 Gbit Ethernet", 7.5e9, 4e9, 12e9, 14e-6,
                     _SOURCE + "NVIDIA/nccl-tests issue 22, NVIDIA/nccl issue 450")  # fmt: skip
