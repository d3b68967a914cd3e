"""What this machine is, and why TensorFlow leaves a GPU unused: `python -m mgpu_helpers`.

    facts = with_tensorflow(gather())
    print(head(facts), body(facts), sep="\\n")

The command prints this and the plan. Only `with_tensorflow` imports TensorFlow.
"""

from mgpu_helpers.doctor.diagnosis import diagnose, explain
from mgpu_helpers.doctor.facts import Facts, TensorFlow, gather, with_tensorflow
from mgpu_helpers.doctor.text import body, head, row

__all__ = [
    "body",
    "diagnose",
    "explain",
    "Facts",
    "gather",
    "head",
    "row",
    "TensorFlow",
    "with_tensorflow",
]
