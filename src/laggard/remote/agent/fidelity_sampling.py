"""Samples of a node for the run's fidelity monitor, which runs beside the controller."""

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
    """Sampler of one node, once a second.

    Args:
        host: name of the node's host.
        clock: map between this node's clock and the reference clock.
        shares: controller of the host's share; None if the host is not limited.
    """

    def __init__(self, host: str, clock: NodeClock, shares: ShareController | None) -> None:
        self._host, self._clock, self._shares = host, clock, shares
        self._cores = set(usable_cores() if shares is None else shares.cpus.values())
        self._due_s = time.monotonic()

    def poll_updates(self) -> Iterator[NodeSample]:
        """Yield a sample if one is due."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        # After a late sample, continue at the usual interval instead of catching up.
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
