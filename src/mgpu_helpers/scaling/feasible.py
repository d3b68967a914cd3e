"""Compare a published time with the peak of the device that it names."""

from __future__ import annotations

from dataclasses import dataclass

from mgpu_helpers.scaling.model import Workload, positive

FASTEST = 4  # times fewer multiplications in a convolution: Winograd, F(4x4, 3x3)


@dataclass(frozen=True)
class Verdict:
    """Whether a published time is possible; share is that of the peak, which 1 reaches."""

    ok: bool
    share: float
    sentence: str

    def __repr__(self) -> str:
        return self.sentence


def feasible(workload: Workload, examples: float, seconds: float, peak_flops: float) -> Verdict:
    """Compare the FLOP of training so many examples in so many seconds with a device's peak.

    The peak is that of the numbers' format: it is higher for float16 than for float32. More than
    the peak can be true: by Winograd's algorithm a convolution of 3x3 multiplies 2.25 or 4 times
    less than is counted here, and a clock may run above that of the data sheet.

    >>> feasible(Workload("mine", 1000, flops=5e6), 1_000_000, seconds=10, peak_flops=4e12)
    5.0 MFLOP x 1,000,000 examples in 10.00 s are 0.5 TFLOP/s, 12% of the peak of 4: possible
    """
    positive("examples", examples, "a number of examples")
    positive("seconds", seconds, "a time")
    positive("peak_flops", peak_flops, "a peak in FLOP/s")
    if workload.flops is None:
        raise ValueError(
            f"{workload.name} has flops=None, so nothing can be said of a peak: give Workload the "
            "FLOP of an example, or make it with Workload.of(model)."
        )
    speed = workload.flops * examples / seconds
    share = speed / peak_flops
    sentence = (
        f"{workload.flops / 1e6:.1f} MFLOP x {examples:,.0f} examples in {seconds:.2f} s are "
        f"{speed / 1e12:.3g} TFLOP/s, "
    )
    if share > FASTEST:
        sentence += f"{share:.1f} times the peak of {peak_flops / 1e12:.3g}: impossible"
    elif share > 1:
        sentence += (
            f"{share:.1f} times the peak of {peak_flops / 1e12:.3g}: well above the peak, and "
            "possible only where most of it is convolutions of 3x3, which Winograd's algorithm "
            "computes with up to 4 times fewer multiplications"
        )
    else:
        sentence += f"{share:.0%} of the peak of {peak_flops / 1e12:.3g}: possible"
    return Verdict(share <= FASTEST, share, sentence)
