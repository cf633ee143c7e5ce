"""What a process says that it sent, beside what its kernel says was acknowledged by the receivers:
at the end of training, while connections are open.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from laggard.workloads.output.worker_output import WorkerOutputDir, write_whole
from laggard.workloads.transport.inet_diag import list_own_connections

if TYPE_CHECKING:
    from laggard.workloads.transport.endpoint import Endpoint


@dataclass(frozen=True)
class Traffic:
    """One process's traffic in a training.

    Attributes:
        node: rank, or number of ranks for the server.
        payload_bytes: of the tensors that it sent; None where a library carried them and does not
            tell.
        acked_bytes: by the kernels of its peers, headers of the messages and acknowledgements of
            theirs included, those of TCP not.
    """

    node: int
    payload_bytes: int | None
    acked_bytes: int


def write_traffic(output_dir: WorkerOutputDir, node: int, endpoint: Endpoint | None) -> None:
    """Put down a process's traffic."""
    payload_bytes = None if endpoint is None else sum(endpoint.sent_bytes.values())
    acked_bytes = sum(each.bytes_acked for each in list_own_connections())
    write_whole(
        output_dir.traffic(node),
        json.dumps(asdict(Traffic(node, payload_bytes, acked_bytes))).encode(),
    )


def read_traffic(output_dir: WorkerOutputDir, nodes: int) -> tuple[Traffic, ...]:
    """Of all processes that have put it down; those that were killed have not."""
    paths = (output_dir.traffic(node) for node in range(nodes))
    return tuple(Traffic(**json.loads(path.read_bytes())) for path in paths if path.exists())
