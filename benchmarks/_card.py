"""Write a result card: what was measured, on which machine, with which versions, and when."""

from __future__ import annotations

import datetime
import json
import os
import platform
from pathlib import Path
from typing import Any

import tensorflow as tf

from mgpu_helpers import __version__
from mgpu_helpers.devices import Plan

RESULTS = Path(__file__).resolve().parent.parent / "results"


def write(name: str, plan: Plan, numbers: dict[str, Any]) -> None:
    """Write results/name.json, whole or not at all."""
    card = {
        "name": name,
        "date": datetime.date.today().isoformat(),
        "machine": plan.machine,
        "mode": plan.mode,
        "devices": len(plan),
        "versions": {
            "mgpu_helpers": __version__,
            "tensorflow": tf.__version__,
            "python": platform.python_version(),
        },
        "numbers": numbers,
    }
    part = RESULTS / f".{name}.part"
    part.write_text(json.dumps(card, indent=2) + "\n")
    os.replace(part, RESULTS / f"{name}.json")
    print(f"written: results/{name}.json")
