"""Fidelity monitor for every node, fed with samples that the node's agent sends.

The logic is that of the local monitor. Each monitor looks at the clocks of its own node, and its
violations are reported in the reference clock's time. Links are not sampled: the kernel emulates
them, its queues are not late by themselves, and no state of them can be read for free.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from laggard.network_emulation.compute.measure import get_tolerance
from laggard.network_emulation.fidelity.monitor import (
    FidelityMonitor,
    FidelitySample,
    FidelityViolation,
    Limits,
)
from laggard.remote.agent.messages import NodeSample
from laggard.run_folder.fidelity_violations import TimedViolation


@dataclass
class NodeFidelityMonitors:
    """Fidelity monitors of all nodes of one run."""

    _samples_before: dict[str, NodeSample] = field(default_factory=dict)
    _is_started: bool = False
    _monitors: dict[str, FidelityMonitor] = field(default_factory=dict)
    _reference_offset_ns: dict[str, int] = field(default_factory=dict)

    def start_monitoring(self) -> None:
        """Begin to monitor, at the first step.

        Each node's last sample before the first step is the first that counts, so that the first
        second is monitored too.
        """
        self._is_started = True
        for host, node_sample in self._samples_before.items():
            self.add(host, node_sample)

    def add(self, host: str, node_sample: NodeSample) -> None:
        """Process one more sample of a host's node."""
        if not self._is_started:
            self._samples_before[host] = node_sample
            return
        if host not in self._monitors:
            allowed = get_tolerance(node_sample.mechanism) if node_sample.mechanism else 0.0
            self._monitors[host] = FidelityMonitor(Limits(late_ns=1.0, compute=allowed))
        self._reference_offset_ns[host] = node_sample.reference_ns - node_sample.at_ns
        self._monitors[host].add(
            FidelitySample(
                at_ns=node_sample.at_ns,
                wall_ns=node_sample.wall_ns,
                awake_ns=node_sample.awake_ns,
                stolen_ns=node_sample.stolen_ns,
                hosts={} if node_sample.use is None else {host: node_sample.use},
                shares={} if node_sample.share is None else {host: node_sample.share},
            )
        )

    def violations(self, zero_ns: int, end_ns: int | None = None) -> tuple[TimedViolation, ...]:
        """Return all fidelity violations in order of time, after the end of training.

        Args:
            zero_ns: time of the first step, reference clock.
            end_ns: end of training, reference clock; None for the time of the last samples.
        """
        found = [
            self._to_timed_violation(host, violation, zero_ns)
            for host, guard in self._monitors.items()
            for violation in guard.violations(
                None if end_ns is None else end_ns - self._reference_offset_ns[host]
            )
        ]
        return tuple(sorted(found, key=lambda each: each.first_s))

    def _to_timed_violation(
        self, host: str, violation: FidelityViolation, zero_ns: int
    ) -> TimedViolation:
        offset_ns = self._reference_offset_ns[host] - zero_ns
        where = f"{violation.where} of {host}" if violation.kind == "cpu stolen" else host
        return TimedViolation(
            replace(violation, where=where),
            max(0.0, (violation.first_ns + offset_ns) / 1e9),
            max(0.0, (violation.last_ns + offset_ns) / 1e9),
        )
