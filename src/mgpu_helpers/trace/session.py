"""Trace one step of a classic Session."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mgpu_helpers.trace.read import read
from mgpu_helpers.trace.step import Trace


def session_step(
    session: Any, fetches: Any, feed_dict: Any = None, keep_metadata: bool = False
) -> tuple[Any, Trace]:
    """Run one step of a classic Session with tracing on; return its values and the trace.

    The first step of a Session prepares the graph: run it once before you trace it. keep_metadata
    keeps TensorFlow's own record as the trace's `metadata`; it may be many megabytes.

    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     value, step = session_step(session, tf.reduce_sum(tf.random.uniform([9])))
    >>> [op.type for op in step.ops if op.type != "Const"]
    ['RandomUniform', 'Sum']
    """
    from tensorflow.compat.v1 import RunMetadata, RunOptions

    options = RunOptions(trace_level=RunOptions.FULL_TRACE, output_partition_graphs=True)
    metadata = RunMetadata()
    values = session.run(fetches, feed_dict, options=options, run_metadata=metadata)
    trace = read(metadata)
    return values, replace(trace, metadata=metadata) if keep_metadata else trace
