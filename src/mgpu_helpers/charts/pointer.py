"""The name of what is under the pointer, in a notebook, where a chart is a picture."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

# By axes: left, low, right, high in the chart's own coordinates, and what to say there.
_named: WeakKeyDictionary[Any, list[tuple[float, float, float, float, str]]] = WeakKeyDictionary()


def name_boxes(ax: Any, boxes: Iterable[tuple[float, float, float, float, str]]) -> None:
    """Keep the names of boxes of a chart, for `pointer`."""
    _named[ax] = list(boxes)


class Picture:
    """A chart for a notebook that says what is under the pointer."""

    def __init__(self, page: str) -> None:
        self.page = page

    def _repr_html_(self) -> str:
        return self.page

    def __repr__(self) -> str:
        return "a chart with names under the pointer, for a notebook"


def pointer(ax: Any) -> Picture:
    """Return a timeline or a map as a picture that names what is under the pointer.

    Make it the value of a cell. It is HTML of its own, for any notebook and without a network; the
    chart's figure is closed, so that the notebook does not show it twice.

    >>> from mgpu_helpers.trace import Op, Trace
    >>> ax = timeline(Trace((Op("encoder/MatMul", "MatMul", "/CPU:1", 0.0, 0.002),), (), {}, ()))
    >>> "encoder/MatMul: 2 ms" in pointer(ax).page
    True
    """
    import matplotlib.pyplot as plt
    import numpy as np

    if ax not in _named:
        raise ValueError("this chart keeps no names: give what timeline or placement_map returned.")
    figure, file, view = ax.figure.canvas.figure, io.BytesIO(), ax.get_window_extent()
    figure.savefig(file, format="png", dpi=figure.dpi)
    width, height = figure.canvas.get_width_height()
    areas: dict[tuple[int, ...], str] = {}  # in pixels; of what shares one, the longest
    for *box, said in sorted(_named[ax], key=lambda each: each[0] - each[2]):
        (x0, y0), (x1, y1) = ax.transData.transform([box[:2], box[2:]])
        left, right = sorted(np.clip([x0, x1], view.x0, view.x1).round().astype(int))
        top, bottom = sorted(np.round([height - y0, height - y1]).astype(int))
        areas.setdefault((left, top, max(1, right - left), max(1, bottom - top)), said)
    spans = "".join(
        f'<span title="{html.escape(said)}" style="position:absolute;left:{100 * x / width:.2f}%;'
        f"top:{100 * y / height:.2f}%;width:{100 * w / width:.2f}%;"
        f'height:{100 * h / height:.2f}%"></span>'
        for (x, y, w, h), said in areas.items()
    )
    plt.close(figure)
    image = base64.b64encode(file.getvalue()).decode()
    return Picture(
        '<div style="position:relative;display:inline-block;line-height:0">'
        f'<img alt="" style="max-width:100%" src="data:image/png;base64,{image}">{spans}</div>'
    )
