"""The style of every chart: one colour for each device, mode and machine in the corner."""

from __future__ import annotations

from importlib import resources
from typing import Any

from mgpu_helpers.names import order

#: The colour of the host.
HOST = "#8a8a8a"
#: The colours of the devices, in their order; the ninth device has the first again.
PALETTE = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e6a100", "#56b4e9", "#7a4fbf", "#8c5a3c",
)  # fmt: skip
IDEAL = {"color": "#444444", "linestyle": "--", "linewidth": 1.2}


def colour(device: str) -> str:
    """Return the colour of a device, the same in every chart; grey for the host.

    >>> colour("/GPU:0") == colour("/CPU:1"), colour("/CPU:0") == HOST
    (True, True)
    """
    kind, index = order(device)
    if device == "/CPU:0":
        return HOST
    return PALETTE[(index - (kind == "/CPU")) % len(PALETTE)]


def pale(colour: str) -> str:
    """Return a lighter shade of a colour, on which white letters can still be read."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(0.72 * part + 0.28 * 255):02x}" for part in (red, green, blue))


def style() -> str:
    """Return the path of the style file, for `plt.style.use`.

    >>> import matplotlib.pyplot as plt
    >>> with plt.style.context(style()):
    ...     figure, ax = plt.subplots()
    """
    return str(resources.files("mgpu_helpers") / "mgpu.mplstyle")


def axes(
    ax: Any = None, *, size: tuple[float, float] | None = None, source: str | None = None
) -> Any:
    """Return ax, or new axes in the style of the series, with mode and machine in the corner.

    Where the numbers are not of this machine, `source` says in the corner where they are from.

    >>> ax = axes(size=(6, 2), source="measured by hand")
    >>> ax.figure.get_size_inches().tolist()
    [6.0, 2.0]
    """
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    with plt.style.context(style()):
        figure, ax = plt.subplots(figsize=size)
        low = min(0.06, 0.3 / figure.get_figheight())  # of its height, for the corner
        layout: Any = figure.get_layout_engine()
        layout.set(rect=(0, low, 1, 1 - low))
        corner(figure, source)
    return ax


def corner(figure: Any, source: str | None = None) -> None:
    """Write into the corner of a figure: the source, or the plan's mode and machine.

    >>> import matplotlib.pyplot as plt
    >>> figure, ax = plt.subplots()
    >>> corner(figure, "measured by hand")
    """
    from mgpu_helpers.devices.plan import current

    plan = current()
    if text := source or (plan.corner if plan else ""):
        figure.text(0.995, 0.01, text, ha="right", va="bottom", size=7.5, color="#666")
