"""Estimate of the time from `laggard run` on this machine to the first training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from laggard.core.virtual_time import Dilation
from laggard.network_emulation.compute.cpu_plan import CpuPlan
from laggard.network_emulation.compute.measure import can_verify_on_busy_cores
from laggard.network_emulation.compute.phases import expected_s, plan_probes
from laggard.network_emulation.fidelity.link_tasks import (
    TCP_LONGEST_RTT_MS,
    choose_representatives,
    estimate_duration_s,
)
from laggard.scenario.load import Scenario

# Seconds on an idle machine with two cores (`benchmarks/bring_up.md`).
_START_S = 0.3
_IMPORT_S = 3.2
_PAIR_S = 1.2e-4
_HOST_S = 0.004
_WORKER_S = 0.035
_LINK_PROBES_S = 2.0
_ATTACH_S = 0.01

_TCP_ROUND_TRIPS = 8
_ECHO_ROUND_TRIPS = 3
_CONNECT_ROUND_TRIPS = 4


@dataclass(frozen=True)
class BringUp:
    """Estimated seconds of the stages before the first training step.

    Attributes:
        create_s: hosts and links.
        imports_s: Python modules of the workers.
        links_s: measurement of the links.
        shares_s: measurement of the CPU shares.
        workers_s: start and connection of the workers.
        overlaps: whether shares are measured beside the imports and links.
    """

    create_s: float
    imports_s: float
    links_s: float
    shares_s: float
    workers_s: float
    overlaps: bool

    @property
    def total_s(self) -> float:
        """Return the seconds to the first step; imports and links are measured side by side."""
        beside_s = max(self.imports_s, self.links_s)
        verified_s = max(beside_s, self.shares_s) if self.overlaps else beside_s + self.shares_s
        return self.create_s + verified_s + self.workers_s


def estimate_bring_up(scenario: Scenario, cpu: CpuPlan) -> BringUp:
    """Return the estimated time to the first step of a run on this machine, if it is idle.

    It depends on the numbers of hosts, host pairs and workers, and on the dilation: round trips
    and phases of computing take that much longer.
    """
    dilation = Dilation(cpu.dilation)
    real = {host: dilation.real_share(share) for host, share in scenario.shares.items()}
    rtt_s = max(
        (dilation.real_ms(task.rtt_ms) / 1e3 for task in choose_representatives(scenario.links)),
        default=0.0,
    )
    tcp_s = min(rtt_s, TCP_LONGEST_RTT_MS / 1e3) * _TCP_ROUND_TRIPS
    return BringUp(
        create_s=_START_S + _HOST_S * len(scenario.hosts) + _PAIR_S * len(scenario.links.pairs),
        imports_s=_IMPORT_S if scenario.trains else 0.0,
        links_s=max(
            _LINK_PROBES_S + tcp_s + _ECHO_ROUND_TRIPS * rtt_s,
            estimate_duration_s(scenario.links, dilation),
        ),
        shares_s=_estimate_shares_s(real),
        workers_s=_WORKER_S * len(scenario.ranks) + _CONNECT_ROUND_TRIPS * rtt_s,
        overlaps=can_verify_on_busy_cores(real, cpu.cpus),
    )


def _estimate_shares_s(real: Mapping[str, float]) -> float:
    plans = plan_probes(real)
    longest_s = max((expected_s(plan, real[host]) for host, plan in plans.items()), default=0.0)
    return longest_s + _ATTACH_S * len(real)
