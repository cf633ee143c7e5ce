"""Bytes that each process sent and that the receiving kernels acknowledged.

They are read at the end of training, while the connections are open.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from laggard.core.node_values import Count, Rank
from laggard.workloads.output.worker_output import WorkerOutputDir, write_whole
from laggard.workloads.transport.inet_diag import list_own_connections

if TYPE_CHECKING:
    from laggard.workloads.transport.endpoint import Endpoint


@dataclass(frozen=True)
class Traffic:
    """Traffic of one process in a training.

    Attributes:
        node: rank, or number of ranks for the server.
        payload_bytes: bytes of the tensors that it sent; None if a library sent them without a
            count.
        acked_bytes: bytes that its peers' kernels acknowledged. They include the headers and
            acknowledgements of messages, but not TCP's.
    """

    node: Rank
    payload_bytes: Count | None
    acked_bytes: Count


_TRAFFIC = TypeAdapter(Traffic)


def write_traffic(output_dir: WorkerOutputDir, node: int, endpoint: Endpoint | None) -> None:
    """Write a process's traffic to its file."""
    payload_bytes = None if endpoint is None else sum(endpoint.sent_bytes.values())
    acked_bytes = sum(each.bytes_acked for each in list_own_connections())
    write_whole(
        output_dir.traffic(node),
        json.dumps(asdict(Traffic(node, payload_bytes, acked_bytes))).encode(),
    )


def read_traffic(output_dir: WorkerOutputDir, nodes: Iterable[int]) -> tuple[Traffic, ...]:
    """Return the traffic of those of these processes that wrote it; killed processes did not.

    Raises:
        ValueError: a file is not the traffic of its process.
    """
    found = []
    for node in nodes:
        path = output_dir.traffic(node)
        if path.exists():
            traffic = _TRAFFIC.validate_json(path.read_bytes())
            if traffic.node != node:
                raise ValueError(f"{path.name} is about process {traffic.node}")
            found.append(traffic)
    return tuple(found)
