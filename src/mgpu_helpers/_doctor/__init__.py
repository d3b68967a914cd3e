"""What this machine is, and why TensorFlow leaves a GPU unused: `python -m mgpu_helpers`.

    for cause in diagnose(gather()):
        print(cause)

The command prints this, and more, and the plan.
"""

from mgpu_helpers._doctor.facts import gather
from mgpu_helpers._doctor.report import diagnose

__all__ = ["diagnose", "gather"]
