"""Seconds that each client of a federated training computes in a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from laggard.core.cost_model.limited_core import expected_efficiency
from laggard.core.cost_model.message_handling import MessageHandling
from laggard.core.hosts import Host
from laggard.predict.host_steps import MachineSteps
from laggard.predict.machine_speed import measure_machine_speed
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
        handling: processor time of messages and updates, on a whole core of this machine.
        round_s: seconds that each client computes in a round, by rank.
    """

    handling: MessageHandling
    round_s: tuple[float, ...]


MeasureTimes = Callable[[Scenario, FederatedParameters, ClientPartition], ClientTimes]


class ClientSpeed(Protocol):
    """Speed of the clients of a scenario."""

    def step_s(self, client: Host, samples: int) -> float:
        """Return the seconds of a step of a client with a number of samples."""

    def overhead_s(self, client: Host, samples: int) -> float:
        """Return the seconds of a client's round besides its steps, with all of its samples."""


@dataclass(frozen=True)
class _MachineSpeed:
    """Speed of shares of a core of this machine.

    What a round takes besides its steps is done with cold caches, as messages are handled.
    """

    scenario: Scenario
    shares: Mapping[str, float]
    steps: MachineSteps
    core_overhead_s: float

    def step_s(self, client: Host, samples: int) -> float:
        return self.steps.speed.step(samples).usual_s / self.shares[client.name]

    def overhead_s(self, client: Host, samples: int) -> float:
        share = self.shares[client.name]
        own_s = self.core_overhead_s / (share * expected_efficiency(min(share, 1.0)))
        return own_s + self.steps.fetch_s(self.scenario, client, samples)


def measure_client_times(
    scenario: Scenario, strategy: FederatedParameters, partition: ClientPartition
) -> ClientTimes:
    """Measure steps on a whole core of this machine, and return the times of all clients.

    Args:
        scenario: scenario with the shares of its hosts.
        strategy: its strategy.
        partition: samples of the clients.

    Raises:
        InputError: the model or the data are invalid.
    """
    sizes = {
        size
        for samples in _count_samples(partition)
        for size in list_local_steps(samples, strategy.local_batch)
    }
    speed = measure_machine_speed(scenario.workload, sorted(sizes) or [strategy.local_batch])
    overhead_s = measure_round_overhead(scenario.workload, strategy.plan_local_training())
    clients = _MachineSpeed(scenario, divide_shares(scenario), MachineSteps(speed), overhead_s)
    return compute_client_times(clients, speed.handling, scenario, strategy, partition)


def compute_client_times(
    speed: ClientSpeed,
    handling: MessageHandling,
    scenario: Scenario,
    strategy: FederatedParameters,
    partition: ClientPartition,
) -> ClientTimes:
    """Return the times of all clients.

    Args:
        speed: speed of the clients.
        handling: processor time of messages and updates.
        scenario: scenario with the clients.
        strategy: its strategy.
        partition: samples of the clients.
    """

    def compute_round_s(samples: int, client: Host) -> float:
        steps = list_local_steps(samples, strategy.local_batch)
        seconds = sum(speed.step_s(client, size) for size in steps)
        return strategy.local_epochs * seconds + speed.overhead_s(client, samples)

    return ClientTimes(
        handling, tuple(map(compute_round_s, _count_samples(partition), scenario.ranks))
    )


def _count_samples(partition: ClientPartition) -> list[int]:
    return [len(partition.list_samples(rank)) for rank in range(partition.world_size)]
