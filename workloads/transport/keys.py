"""Keys of one run, made by the controller and never written to disk.

Each process gets its keys through the private pipe that starts it. On another machine, they travel
over that machine's SSH session first.
"""

from __future__ import annotations

from collections.abc import Sequence

from laggard.workloads.transport.plan import EndpointPlan


def make_endpoints(addresses: Sequence[str], timeout_s: float) -> tuple[EndpointPlan, ...]:
    """Return the plans of all nodes, each with a new key pair.

    Args:
        addresses: addresses of all nodes, `address:port`.
        timeout_s: real seconds after which a node that does not answer is an error.
    """
    import zmq

    pairs = [zmq.curve_keypair() for _ in addresses]
    publics = tuple(public.decode() for public, _ in pairs)
    return tuple(
        EndpointPlan(
            node=node,
            addresses=tuple(addresses),
            public_keys=publics,
            secret_key=secret.decode(),
            timeout_s=timeout_s,
        )
        for node, (_, secret) in enumerate(pairs)
    )
