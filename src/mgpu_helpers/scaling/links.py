"""What lies between two devices: bandwidths with their sources, and what a message costs."""

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
    source: str

    def __post_init__(self) -> None:
        if not (0 < self.low <= self.bandwidth <= self.high < math.inf and self.latency >= 0):
            raise ValueError(
                f"{self.name}: bandwidth={self.bandwidth}, low={self.low}, high={self.high}, "
                f"latency={self.latency} do not fit: use 0 < low <= bandwidth <= high and a "
                "latency of 0 or more, in bytes a second and seconds."
            )


# Latencies: what one step of a ring takes by the model with which NCCL chooses its algorithm.
_NCCL = "latency: ring, simple protocol, in NVIDIA/nccl src/graph/tuning.cc (b647562)"
#: PCI Express 3.0 with 16 lanes, by way of the host.
PCIE_3 = Link(
    "PCIe 3.0 x16", 8e9, 5e9, 12e9, 5.7e-6,
    "high: PCI_BW in NVIDIA/nccl src/graph/topo.h; low: through shared memory between two sockets, "
    "developer.nvidia.com/blog/scaling-deep-learning-training-nccl; between them a guess, near the "
    f"8.2 GB/s that the rows of the tensorlight notebook, 2016, fit; {_NCCL}",
)  # fmt: skip
#: NVLink 3, as between the GPUs of a machine with 8 A100.
NVLINK_3 = Link(
    "NVLink 3 (A100)", 230e9, 200e9, 240e9, 3.4e-6,
    "12 links of 20 GB/s (SM80_NVLINK_BW) in NVIDIA/nccl src/graph/topo.h; all-reduce on 8 A100: "
    f"232.5 GB/s in NVIDIA/nccl-tests issue 175, about 200 in issue 149; {_NCCL}",
)  # fmt: skip
#: Ethernet of 100 Gbit a second, between machines.
ETHERNET_100G = Link(
    "100 Gbit Ethernet", 7.5e9, 4e9, 12e9, 14e-6,
    "high: NET_BW in NVIDIA/nccl src/graph/topo.h; 60 Gbit/s in a ring on AWS: NVIDIA/nccl-tests "
    f"issue 22; low: 4 to 6 GB/s over TCP, NVIDIA/nccl issue 450; {_NCCL}",
)  # fmt: skip
