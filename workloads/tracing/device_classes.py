"""What kind of device each rank computed on, in the table of hosts: ranks with GPUs left word in
their spools.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from laggard.workloads.devices import CPU

if TYPE_CHECKING:
    from laggard.workloads.tracing.collect import Source

_COLUMN = "device_class"


def with_device_classes(hosts: pa.Table, sources: Sequence[Source]) -> pa.Table:
    """The table of hosts with every rank's device class: `cpu`, or its GPU's model.

    Args:
        hosts: one row per rank, in rank order (`host_schema`).
        sources: what the training streamed, by machine.
    """
    words = {
        rank: source.output_dir.device_class(rank) for source in sources for rank in source.ranks
    }
    models = {rank: word.read_text() for rank, word in words.items() if word.exists()}
    classes = [models.get(rank, CPU) for rank in hosts.column("rank").to_pylist()]
    return hosts.set_column(
        hosts.schema.get_field_index(_COLUMN), _COLUMN, pa.array(classes, pa.string())
    )
