"""The graph that TensorFlow would run on a GPU, without one, and a made-up record of its step.

Grappler optimizes for the devices that it is told of. Told of a GPU it changes layouts and fuses as
it does for that GPU. Nothing of this runs here: the times are made up, one kernel after the other.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
TASK = "/job:localhost/replica:0/task:0"
GPU = f"{TASK}/device:GPU:0"
# They only say how a tensor is read, or are read by the host: no kernel is launched for them.
NO_KERNEL = {
    "Const", "ExpandDims", "Identity", "IdentityN", "NoOp", "Placeholder", "PreventGradient",
    "Rank", "ReadVariableOp", "Reshape", "Shape", "ShapeN", "Size", "Squeeze", "StopGradient",
    "VarHandleOp",
}  # fmt: skip


def optimized(function: Callable[..., Any], *args: Any) -> Any:
    """Give the GraphDef of one call, as Grappler leaves it for a GPU: from 7.5 to 9.0 it is one."""
    import tensorflow as tf
    from tensorflow.core.protobuf import device_properties_pb2 as properties
    from tensorflow.python.grappler import cluster, tf_optimizer

    concrete = tf.function(function).get_concrete_function(*map(tf.constant, args))
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(concrete.graph.as_graph_def(), name="")
        meta = tf.compat.v1.train.export_meta_graph(graph=graph)
    held = {variable.handle.ref(): variable for variable in concrete.graph.variables}
    handles = {inside.op.name: held[outside.ref()] for outside, inside in concrete.graph.captures
               if outside.ref() in held}  # fmt: skip
    for node in meta.graph_def.node:
        if node.name in handles:  # else the shapes of what is read would not be known
            variable = handles[node.name]
            node.CopyFrom(tf.compat.v1.NodeDef(name=node.name, op="VarHandleOp"))
            node.attr["dtype"].type = variable.dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
            node.attr["shared_name"].s = node.name.encode()
    library = (node for each in meta.graph_def.library.function for node in each.node_def)
    for node in [*meta.graph_def.node, *library]:
        node.device = GPU
    kept = meta.collection_def["train_op"].node_list.value
    kept.extend(output.name for output in concrete.outputs)
    kept.extend(op.name for op in concrete.graph.control_outputs)
    gpu = properties.DeviceProperties(
        type="GPU", vendor="NVIDIA", environment={"architecture": "9.0", "cudnn": "90300"},
        num_cores=100, frequency=1500, bandwidth=10**9, memory_size=2**34,
    )  # fmt: skip
    cpu = properties.DeviceProperties(type="CPU", num_cores=4, frequency=2000, memory_size=2**34)
    there = [
        properties.NamedDevice(name=name, properties=each)
        for name, each in ((f"{TASK}/device:CPU:0", cpu), (GPU, gpu))
    ]
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    return tf_optimizer.OptimizeGraph(config, meta, cluster=cluster.Cluster(devices=there))


def record(graph: Any, microseconds: int = 10) -> Any:
    """Make a RunMetadata of a step of the graph: each kernel takes as long, and they touch.

    A tensor is held from the start of its operation until the last one that uses it has ended.
    """
    import tensorflow as tf

    metadata = tf.compat.v1.RunMetadata()
    metadata.partition_graphs.add().CopyFrom(graph)
    with tf.Graph().as_default() as known:  # every shape, of what the optimizer has added too
        tf.import_graph_def(graph, name="")
    nodes = {node.name: node for node in graph.node}
    makers = {
        name: {given.lstrip("^").partition(":")[0] for given in node.input if nodes[
            given.lstrip("^").partition(":")[0]].op != "NextIteration"}
        for name, node in nodes.items()
    }  # fmt: skip
    order = list(TopologicalSorter(makers).static_order())
    last = {maker: i for i, name in enumerate(order) for maker in (*makers[name], name)}
    ran = metadata.step_stats.dev_stats.add(device=GPU)
    stream = metadata.step_stats.dev_stats.add(device="/device:GPU:0/stream:all")
    begin = 1_700_000_000_000_000  # us since 1970
    for i, name in enumerate(order):
        start, node = begin + i * microseconds, nodes[name]
        noted = ran.node_stats.add(
            node_name=name, all_start_micros=start, all_start_nanos=start * 1000,
            op_end_rel_nanos=1000, all_end_rel_nanos=2000,
            timeline_label=f"{name} = {node.op}()",
        )  # fmt: skip
        for slot, output in enumerate(known.get_operation_by_name(name).outputs):
            about = noted.output.add(slot=slot).tensor_description
            about.dtype = output.dtype.as_datatype_enum
            for size in output.shape if output.shape.rank else ():
                about.shape.dim.add(size=size or 0)
            if node.op in NO_KERNEL or output.dtype in (tf.resource, tf.variant, tf.string):
                continue
            size = output.dtype.size * (output.shape.num_elements() or 0)
            about.allocation_description.allocator_name = "GPU_0_bfc"
            about.allocation_description.allocated_bytes = size
            about.allocation_description.requested_bytes = size
            memory = noted.memory.add(allocator_name="GPU_0_bfc")
            end = begin + (last[name] + 1) * microseconds
            memory.allocation_records.add(alloc_micros=start, alloc_bytes=size)
            memory.allocation_records.add(alloc_micros=end, alloc_bytes=-size)
        if node.op not in NO_KERNEL:
            stream.node_stats.add(
                node_name=f"{name}:{node.op}", all_start_micros=start, scheduled_micros=start,
                all_end_rel_micros=microseconds, op_end_rel_micros=microseconds,
            )  # fmt: skip
    return metadata


def gpu_step(version: str) -> Any:
    """Give the RunMetadata of a step on two GPUs, by data/make_gpu_step.cc and a TensorFlow.

    It has kernels on several streams, a loop, and of NCCL what carries no operation.
    """
    from tensorflow.compat.v1 import RunMetadata

    return RunMetadata.FromString((DATA / f"gpu_step_{version}.pb").read_bytes())


def recorded(name: str) -> Any:
    """Give the RunMetadata of a step that ran on one H100, with TensorFlow 2.21.

    "step" is a network of 128 digits in a Session, "lstm" the LSTMs of keras_models by fit, "split"
    its residual network by fit.split on two shares of the GPU.
    """
    from tensorflow.compat.v1 import RunMetadata

    packed = DATA / f"h100_{name}.pb.xz"
    return RunMetadata.FromString(lzma.decompress(packed.read_bytes()))
