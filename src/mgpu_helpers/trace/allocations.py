"""What operations took and gave back, from RunMetadata."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from mgpu_helpers.trace.nodes import plain_name
from mgpu_helpers.trace.step import Allocation


def allocations_of(stats: Iterable[tuple[str, Any]], begin: int) -> list[Allocation]:
    """Pair what each operation took with when it was given back, by the start.

    The records of a GPU have what its allocator set aside: rounded up to 256 bytes, or a block that
    it did not split. What was asked for stands with the tensor that lies there.
    """
    found = []
    for device, node in stats:
        returned = (node.all_start_nanos + node.op_end_rel_nanos - begin) / 1e9
        asked: dict[tuple[str, int], list[int]] = defaultdict(list)
        for output in node.output:
            about = output.tensor_description.allocation_description
            asked[about.allocator_name, about.allocated_bytes].append(about.requested_bytes)
        for used in node.memory:
            # A GPU's operation may also take memory of the host, to copy from or for a shape.
            on_host = re.search("host|cpu", used.allocator_name, re.IGNORECASE)
            where = "/CPU:0" if on_host and device.startswith("/GPU") else device
            taken: list[list[Any]] = []  # size, start, end; two of a size: first come, first freed
            for record in used.allocation_records:
                moment = max(0.0, (record.alloc_micros * 1000 - begin) / 1e9)
                if record.alloc_bytes > 0:
                    taken.append([record.alloc_bytes, moment, None])
                    continue
                for one in taken:
                    if one[2] is None and one[0] == -record.alloc_bytes:
                        one[2] = moment
                        break
            # What others use is freed after them, and they start after its operation ended.
            made = [(end is not None and end <= returned, *one, end) for *one, end in taken]
            for scratch, size, start, end in sorted(made, key=lambda each: each[0]):
                tensors = asked[used.allocator_name, size]
                size = tensors.pop(0) if tensors else size
                found.append(
                    Allocation(plain_name(node.node_name), where, size, start, end, scratch)
                )
    return sorted(found, key=lambda a: (a.start, a.op))
