"""The best cut of a network that is no chain, between a device and a server.

The least sum of computing and transfers is a minimum cut (C. Hu et al., "Dynamic adaptive DNN
surgery for inference acceleration on the edge", INFOCOM 2019). A tensor passes once, however many
operations of the server need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laggard.core.errors import InputError


@dataclass(frozen=True)
class NetworkOperation:
    """Operation of a network.

    Attributes:
        device_s: seconds at the device.
        server_s: seconds at the server.
        output_bytes: bytes of its output.
        after: numbers of the operations whose outputs it needs; they come earlier in the list.
        needs_sample: whether it needs the sample.
    """

    device_s: float
    server_s: float
    output_bytes: float
    after: tuple[int, ...] = ()
    needs_sample: bool = False


def find_best_cut(
    operations: Sequence[NetworkOperation], sample_bytes: float, byte_s: float
) -> frozenset[int]:
    """Return the operations of the device in the cut with the least sum of seconds.

    Args:
        operations: all operations, each after those that it needs.
        sample_bytes: bytes of the sample, which is at the device.
        byte_s: seconds per byte of the link.

    Raises:
        InputError: an operation needs a later one.

    Examples:
        >>> first = NetworkOperation(1.0, 0.1, output_bytes=10.0, needs_sample=True)
        >>> second = NetworkOperation(1.0, 0.1, output_bytes=10.0, after=(0,))
        >>> sorted(find_best_cut([first, second], sample_bytes=1000.0, byte_s=0.01))
        [0]
    """
    import networkx as nx

    graph = nx.DiGraph()
    infinite = 1 + sum(each.device_s + each.server_s for each in operations)
    infinite += byte_s * (sample_bytes + sum(each.output_bytes for each in operations))
    # A node on the source's side is the device's. An edge that is cut is what this costs.
    graph.add_edge("device", "sample passed", capacity=byte_s * sample_bytes)
    users: list[list[int]] = [[] for _ in operations]
    for number, operation in enumerate(operations):
        if any(not 0 <= each < number for each in operation.after):
            raise InputError(
                f"operation {number} needs {operation.after} — let each need earlier ones only"
            )
        graph.add_edge("device", number, capacity=operation.server_s)
        graph.add_edge(number, "server", capacity=operation.device_s)
        for each in operation.after:
            users[each].append(number)
            # The server sends nothing back, so what a device's operation needs is the device's.
            graph.add_edge(number, each, capacity=infinite)
        if operation.needs_sample:
            graph.add_edge("sample passed", number, capacity=infinite)
    for number, operation in enumerate(operations):
        if users[number]:
            passed = f"{number} passed"
            graph.add_edge(number, passed, capacity=byte_s * operation.output_bytes)
            for user in users[number]:
                graph.add_edge(passed, user, capacity=infinite)
    _, (own, _) = nx.minimum_cut(graph, "device", "server")
    return frozenset(each for each in own if isinstance(each, int))


def compute_cut_s(
    operations: Sequence[NetworkOperation],
    own: frozenset[int],
    sample_bytes: float,
    byte_s: float,
) -> float:
    """Return the seconds of all operations and transfers, if the device computes its own ones."""
    needed = {
        each
        for number, operation in enumerate(operations)
        if number not in own
        for each in operation.after
    }
    moved = sum(operations[each].output_bytes for each in needed & own)
    if any(number not in own and each.needs_sample for number, each in enumerate(operations)):
        moved += sample_bytes
    computing_s = sum(
        each.device_s if number in own else each.server_s for number, each in enumerate(operations)
    )
    return computing_s + byte_s * moved
