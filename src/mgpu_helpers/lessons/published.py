"""Training times that others have published, as rows that `scaling` can fit: docs/sources.md.

Memory is in MiB, as the notebook prints it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from mgpu_helpers.scaling.links import ETHERNET_100G
from mgpu_helpers.scaling.model import Measurement, Setting, Workload


def _published(
    total: float, memory: tuple[int, ...], setting: Setting, note: str = ""
) -> Measurement:
    source = f"the tensorlight notebook, 2016{note}"
    return Measurement(setting, total / 2000, source, memory, total)


TENSORLIGHT = (  # data parallel, TitanX, 2000 steps each
    _published(37.0640978813, (4285, 108), Setting(1, 128)),
    _published(65.0734059811, (4285, 108), Setting(1, 128, "host")),
    _published(86.920060873, (1214, 1212), Setting(2, 128, "host")),
    _published(75.5817620754, (1214, 1212), Setting(2, 128, "host"), ", second run"),
    _published(109.699135065, (2238, 2236), Setting(2, 256, "host")),
    _published(168.136204004, (4324, 4348), Setting(2, 512, "host")),
    _published(117.819902897, (2236, 2236, 2274), Setting(3, 256, "host")),
    _published(91.0233440399, (2238, 2236, 2236), Setting(3, 256)),
    _published(230.154171944, (4348, 4348, 4352), Setting(3, 768, "host")),
)
_SPLIT = Setting(2, 128, path="split")
TENSORLIGHT_SPLIT = _published(40.3634259701, (2236, 2795), _SPLIT, ", gradients colocated")
# Rows that the model does not speak of: never fitted, shown beside it.
TENSORLIGHT_APART = {
    "CPU only": _published(712.075469971, (130, 108), Setting(1, 128), ", CPU only"),
    "not colocated": _published(46.6568570137, (2236, 2795), _SPLIT, ", gradients not colocated"),
    "third run": Measurement(
        Setting(2, 128, "host"), 0.0284, "a later version of the tensorlight notebook, third run"
    ),
}
# The program that the note copies has the same times beside 10 epochs of 55,000 // 10,000 steps:
# 50 steps.
P40 = tuple(
    Measurement(Setting(n, 10_000 // n), total / 50, "the P40 note, 2017", total=total)
    for n, total in ((1, 22.252533), (2, 12.632623), (4, 11.083071), (8, 11.990167))
)


def _benchmarks(
    machine: str, batch: int, variables: str, *rates: float, gpus: int = 1
) -> tuple[Measurement, ...]:
    """Make the rows of a column: images a second on 1, 2, 4 and 8 (servers of) GPUs, made up."""
    source = f"TensorFlow's benchmarks, 2017, {machine}"
    return tuple(
        Measurement.of_rate(Setting(gpus * n, batch, variables), rate, source)
        for n, rate in zip((1, 2, 4, 8), rates, strict=True)
    )


# Parameters to three digits: they scale the bandwidth that comes out, and no prediction. VGG16's
# FLOP are 6 for each of the multiply-adds of its layers.
_INCEPTION, _ALEXNET = Workload("InceptionV3", 23_800_000), Workload("AlexNet", 61_800_000)
_RESNET_50, _RESNET_152 = Workload("ResNet-50", 25_600_000), Workload("ResNet-152", 60_200_000)
_VGG16 = Workload("VGG16", 138_000_000, 6 * 15_470_264_320)
# TensorFlow's own benchmarks of May 2017, 1 to 8 GPUs, training on made-up images. On the DGX-1
# NCCL averages for AlexNet and VGG16; all others have their variables on the host.
DGX_1 = (  # Tesla P100
    (_INCEPTION, _benchmarks("DGX-1", 64, "host", 142, 284, 569, 1131)
     + _benchmarks("DGX-1", 32, "host", 128, 259, 520, 995)),
    (_RESNET_50, _benchmarks("DGX-1", 64, "host", 219, 422, 852, 1734)
     + _benchmarks("DGX-1", 32, "host", 195, 368, 768, 1485)),
    (_RESNET_152, _benchmarks("DGX-1", 64, "host", 91.8, 181, 356, 716)
     + _benchmarks("DGX-1", 32, "host", 82.7, 160, 317, 632)),
    (_ALEXNET, _benchmarks("DGX-1", 512, "ring", 2987, 5658, 10509, 17822)),
    (_VGG16, _benchmarks("DGX-1", 64, "ring", 154, 295, 584, 1081)
     + _benchmarks("DGX-1", 32, "ring", 144, 281, 549, 820)),
)  # fmt: skip
K80 = (  # two GPUs to a card, on Google Compute Engine
    (_INCEPTION, _benchmarks("K80", 64, "host", 30.5, 57.8, 116, 227)
     + _benchmarks("K80", 32, "host", 29.3, 55.0, 109, 216)),
    (_RESNET_50, _benchmarks("K80", 64, "host", 51.9, 99.0, 195, 387)
     + _benchmarks("K80", 32, "host", 49.5, 95.4, 183, 362)),
    (_RESNET_152, _benchmarks("K80", 32, "host", 20.0, 38.2, 75.8, 148)),
    (_ALEXNET, _benchmarks("K80", 512, "host", 656, 1209, 2328, 4640)),
    (_VGG16, _benchmarks("K80", 32, "host", 35.4, 64.8, 120, 234)),
)  # fmt: skip
# The same page: servers of eight K80 (Amazon EC2, p2.8xlarge), 1, 2, 4 and 8 of them. Each server
# holds a share of the variables for all: as many bytes leave it and come as in a ring of servers.
# Of 8 servers fewer hold variables in three of these rows, so more crosses there.
SERVERS = (
    (_INCEPTION, _benchmarks("EC2", 64, "device", 229, 459, 902, 1783, gpus=8)),
    (_INCEPTION, _benchmarks("EC2", 32, "device", 219, 427, 820, 1608, gpus=8)),
    (_RESNET_50, _benchmarks("EC2", 64, "device", 378, 751, 1388, 2744, gpus=8)),
    (_RESNET_50, _benchmarks("EC2", 32, "device", 333, 667, 1180, 2315, gpus=8)),
    (_RESNET_152, _benchmarks("EC2", 32, "device", 146, 291, 565, 981, gpus=8)),
)
# The lowest rate that users of NCCL measured on it.
ETHERNET_100G_AT_4 = dataclasses.replace(
    ETHERNET_100G, name="100 Gbit at 4 GB/s", bandwidth=ETHERNET_100G.low
)


def on_servers() -> Iterator[tuple[str, Workload, int, float, float]]:
    """Give each training on several servers: name, network, servers, seconds on one and on all."""
    for work, (one, *more) in SERVERS:
        for row in more:
            servers = row.setting.devices // one.setting.devices
            name = f"{work.name} x {row.setting.per_device_batch}, {servers} servers"
            yield name, work, servers, one.seconds, row.seconds
