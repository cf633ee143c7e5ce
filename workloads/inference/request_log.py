"""Rows of the requests that a device has answered, as JSON lines."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from laggard.workloads.output.worker_output import append_line


@dataclass(frozen=True)
class RequestRow:
    """Request at its end; times are CLOCK_MONOTONIC ns of this machine.

    Attributes:
        number: number of the request at its device, from 0.
        node: number of the device.
        network: number of the network.
        arrived_ns: time at which it arrived.
        answered_ns: time of its answer; -1 if it was shed.
        cut: number of blocks that the device computed.
        computed_ns: time in which the device computed its blocks.
        link_ns: time on the link to the server and back.
        server_ns: time at the server, with its queue.
        deadline_ns: time after its arrival until which it should be answered; -1 without one.
        alone_ns: time that the chosen cut takes alone.
        correct: number of samples with the right answer.
        samples: number of samples.
        answers: number of models whose answers count.
        feasible: whether any cut was expected to meet its deadline.
    """

    number: int
    node: int
    network: int
    arrived_ns: int
    answered_ns: int
    cut: int
    computed_ns: int = 0
    link_ns: int = 0
    server_ns: int = 0
    deadline_ns: int = -1
    alone_ns: int = 0
    correct: int = 0
    samples: int = 0
    answers: int = 0
    feasible: bool = True


def requests_path(folder: Path, node: int) -> Path:
    """Return the JSON lines of a device's requests."""
    return folder / f"requests-{node}.jsonl"


def log_request(folder: Path, row: RequestRow) -> None:
    """Append the row of a request that has ended."""
    append_line(requests_path(folder, row.node), asdict(row))
