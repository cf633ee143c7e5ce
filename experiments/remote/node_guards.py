"""A guard for every node, fed with what the node's agent tells: the local guard's logic, sampled
over the network.

Each looks at the clocks of its own node; what it finds is told in the reference's time. Links are
the kernels' there, and nothing of them can be read at no cost; what shapes them is not late by
itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from laggard.experiments.guarding import TimedSlip
from laggard.experiments.remote.messages import Sampled
from laggard.network_emulation.compute.measure import tolerance
from laggard.network_emulation.guard import Guard, Limits, Sample, Slip


@dataclass
class NodeGuards:
    """The guards of one run."""

    _before: dict[str, Sampled] = field(default_factory=dict)
    _begun: bool = False
    _guards: dict[str, Guard] = field(default_factory=dict)
    _ahead_ns: dict[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Training begins: each node's last sample before is the first that counts, so that nothing
        of the first second goes unseen.
        """
        self._begun = True
        for host, told in self._before.items():
            self.enter(host, told)

    def enter(self, host: str, told: Sampled) -> None:
        """Look at one more sample of a host's node."""
        if not self._begun:
            self._before[host] = told
            return
        if host not in self._guards:
            allowed = tolerance(told.mechanism) if told.mechanism else 0.0
            self._guards[host] = Guard(Limits(late_ns=1.0, compute=allowed))
        self._ahead_ns[host] = told.reference_ns - told.at_ns
        self._guards[host].enter(
            Sample(
                at_ns=told.at_ns,
                wall_ns=told.wall_ns,
                awake_ns=told.awake_ns,
                stolen_ns=told.stolen_ns,
                hosts={} if told.use is None else {host: told.use},
                shares={} if told.share is None else {host: told.share},
            )
        )

    def slips(self, zero_ns: int, end_ns: int | None = None) -> tuple[TimedSlip, ...]:
        """What slipped, in order of time; to be asked at the end.

        Args:
            zero_ns: when the first step began, reference clock.
            end_ns: when training ended, reference clock; None for the last samples.
        """
        found = [
            self._timed(host, slip, zero_ns)
            for host, guard in self._guards.items()
            for slip in guard.slips(None if end_ns is None else end_ns - self._ahead_ns[host])
        ]
        return tuple(sorted(found, key=lambda each: each.first_s))

    def _timed(self, host: str, slip: Slip, zero_ns: int) -> TimedSlip:
        ahead_ns = self._ahead_ns[host] - zero_ns
        where = f"{slip.where} of {host}" if slip.kind == "core stolen" else host
        return TimedSlip(
            replace(slip, where=where),
            max(0.0, (slip.first_ns + ahead_ns) / 1e9),
            max(0.0, (slip.last_ns + ahead_ns) / 1e9),
        )
