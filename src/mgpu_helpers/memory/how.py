"""How a training step may be taken: what a plan calls it, and the code that does it."""

from __future__ import annotations

from dataclasses import dataclass

from mgpu_helpers._formatting import counted


@dataclass(frozen=True)
class How:
    """What is done to a step; state is where weights and slots are: as it is, "shared" or "host".

    shared says whether the batch is shared out over all devices.
    """

    half: bool = False
    parts: bool = False
    shared: bool = False
    state: str = ""
    pieces: int = 1

    @property
    def elsewhere(self) -> bool:
        """Say whether anything is on other devices than in the step as it is."""
        return self.shared or bool(self.state)

    def name(self, devices: int, parts: int) -> str:
        """Name it, with so many devices to share and parts to run again."""
        what = "batch and state" if self.state == "shared" else "batch"
        said = [
            *["mixed_bfloat16"] * self.half,
            *[f"{what} over {counted(devices, 'device')}"] * self.shared,
            *["state on the host"] * (self.state == "host"),
            *[f"recompute in {parts} parts"] * self.parts,
            *[f"accumulate {self.pieces}"] * (self.pieces > 1),
        ]
        return " + ".join(said) or "as it is"

    def write(self, devices: int, normalizes: bool) -> str:
        """Write the code; normalizes says whether the model has a BatchNormalization."""
        code = "fit.recompute(model)" if self.parts else "model"
        if self.state:
            code = f"fit.shard({code}, {'[plan.host]' if self.state == 'host' else 'plan.devices'})"
        if self.elsewhere:
            first = "" if self.shared or devices == 1 else "[:1]"
            # A part that runs alone cannot meet those of other devices in a BatchNormalization.
            own = ', batch_norm="average"' * (self.parts and normalizes)
            code = f"fit.parallel({code}, plan.devices{first}{own})"
        if self.pieces > 1:
            code = f"fit.accumulate({code}, {self.pieces})"
        code = code.removeprefix("model")
        if not self.half:
            return code
        before = 'keras.config.set_dtype_policy("mixed_bfloat16")'
        if code:
            return f"{code}  # of a model that is made after {before}"
        return before
