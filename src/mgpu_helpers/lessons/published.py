"""Training times that others have published, as rows that `scaling` can fit: docs/sources.md.

Memory is in MiB, as the notebook prints it.
"""

from __future__ import annotations

from mgpu_helpers.scaling.model import Layout, Measurement


def _published(
    total: float, memory: tuple[int, ...], layout: Layout, note: str = ""
) -> Measurement:
    return Measurement(layout, total / 2000, f"the tensorlight notebook, 2016{note}", memory, 2000)


TENSORLIGHT = (  # data parallel, TitanX, 2000 steps each
    _published(37.0640978813, (4285, 108), Layout(1, 128)),
    _published(65.0734059811, (4285, 108), Layout(1, 128, "host")),
    _published(86.920060873, (1214, 1212), Layout(2, 128, "host")),
    _published(75.5817620754, (1214, 1212), Layout(2, 128, "host"), ", second run"),
    _published(109.699135065, (2238, 2236), Layout(2, 256, "host")),
    _published(168.136204004, (4324, 4348), Layout(2, 512, "host")),
    _published(117.819902897, (2236, 2236, 2274), Layout(3, 256, "host")),
    _published(91.0233440399, (2238, 2236, 2236), Layout(3, 256)),
    _published(230.154171944, (4348, 4348, 4352), Layout(3, 768, "host")),
)
_SPLIT = Layout(2, 128, path="split")
TENSORLIGHT_SPLIT = _published(40.3634259701, (2236, 2795), _SPLIT, ", gradients colocated")
# Rows that the model does not speak of: never fitted, shown beside it.
TENSORLIGHT_APART = {
    "CPU only": _published(712.075469971, (130, 108), Layout(1, 128), ", CPU only"),
    "not colocated": _published(46.6568570137, (2236, 2795), _SPLIT, ", gradients not colocated"),
    "third run": Measurement(
        Layout(2, 128, "host"), 0.0284, "a later version of the tensorlight notebook, third run"
    ),
}
# The program that the note copies has the same times beside 10 epochs of 55,000 // 10,000 steps:
# 50 steps.
P40 = tuple(
    Measurement(Layout(n, 10_000 // n), total / 50, "the P40 note, 2017", steps=50)
    for n, total in ((1, 22.252533), (2, 12.632623), (4, 11.083071), (8, 11.990167))
)
# 3840 cores x 2 FLOP x 1.531 GHz, its highest clock; NVIDIA's data sheet rounds it to 12 TFLOP/s.
P40_FLOPS = 3840 * 2 * 1.531e9
