"""Seconds that each client of a federated training computes in a round."""

from __future__ import annotations

from dataclasses import dataclass

from laggard.core.cost_model.limited_core import expected_efficiency
from laggard.core.hosts import Host
from laggard.predict.host_steps import MachineSteps
from laggard.predict.machine_speed import MachineSpeed, measure_machine_speed
from laggard.predict.planned_training import divide_shares
from laggard.scenario.load import Scenario
from laggard.virtual.round_overhead import measure_round_overhead
from laggard.workloads.clients.client_partition import ClientPartition
from laggard.workloads.clients.local_steps import list_local_steps
from laggard.workloads.strategies.federated.parameters import FederatedParameters


@dataclass(frozen=True)
class ClientTimes:
    """Times of clients.

    Attributes:
        speed: speed of a whole core of this machine.
        round_s: seconds that each client computes in a round, by rank.
    """

    speed: MachineSpeed
    round_s: tuple[float, ...]


def measure_client_times(
    scenario: Scenario, strategy: FederatedParameters, partition: ClientPartition
) -> ClientTimes:
    """Measure steps on a whole core of this machine, and return the times of all clients.

    What a round takes besides its steps is done with cold caches, as messages are handled.

    Args:
        scenario: scenario with the shares of its hosts.
        strategy: its strategy.
        partition: samples of the clients.

    Raises:
        InputError: the model or the data are invalid.
    """
    samples = [len(partition.list_samples(rank)) for rank in range(partition.world_size)]
    sizes = {size for count in samples for size in list_local_steps(count, strategy.local_batch)}
    speed = measure_machine_speed(scenario.workload, sorted(sizes) or [strategy.local_batch])
    overhead_s = measure_round_overhead(scenario.workload, strategy.plan_local_training())
    shares, steps = divide_shares(scenario), MachineSteps(speed)

    def compute_client_s(count: int, host: Host) -> float:
        share = shares[host.name]
        besides_s = overhead_s / (share * expected_efficiency(min(share, 1.0)))
        own_s = compute_round_s(speed, count, strategy) / share
        return own_s + besides_s + steps.fetch_s(scenario, host, count)

    return ClientTimes(speed, tuple(map(compute_client_s, samples, scenario.ranks)))


def compute_round_s(speed: MachineSpeed, samples: int, strategy: FederatedParameters) -> float:
    """Return the seconds of all steps of a round on a whole core."""
    steps = list_local_steps(samples, strategy.local_batch)
    return strategy.local_epochs * sum(speed.step(size).usual_s for size in steps)
