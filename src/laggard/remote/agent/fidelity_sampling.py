"""What a node tells the guard of a run, which sits beside the controller."""

from __future__ import annotations

import time
from collections.abc import Iterator

from laggard.network_emulation.compute import ShareController
from laggard.network_emulation.compute.cpu_plan import usable_cores
from laggard.network_emulation.fidelity.sampling import take_sample
from laggard.remote.agent.messages import NodeSample
from laggard.remote.agent.node_clock import NodeClock

_SAMPLE_INTERVAL_S = 1.0


class NodeSampler:
    """Samples one node every second.

    Args:
        host: its host.
        clock: between this node's clock and the reference.
        shares: holds the host to its share; None where nothing limits it.
    """

    def __init__(self, host: str, clock: NodeClock, shares: ShareController | None) -> None:
        self._host, self._clock, self._shares = host, clock, shares
        self._cores = set(usable_cores() if shares is None else shares.cpus.values())
        self._due_s = time.monotonic()

    def poll_updates(self) -> Iterator[NodeSample]:
        """A sample, if it is time for one."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = max(self._due_s + _SAMPLE_INTERVAL_S, now_s)
        sample = take_sample(self._cores, self._shares)
        yield NodeSample(
            reference_ns=self._clock.to_reference(sample.at_ns),
            at_ns=sample.at_ns,
            wall_ns=sample.wall_ns,
            awake_ns=sample.awake_ns,
            stolen_ns=dict(sample.stolen_ns),
            use=sample.hosts.get(self._host),
            share=sample.shares.get(self._host),
            mechanism=None if self._shares is None else self._shares.mechanism,
        )
