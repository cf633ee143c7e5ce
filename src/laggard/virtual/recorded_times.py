"""Seconds of clients in a round as recorded runs had them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.analysis.cost_model.recorded_overhead import measure_overheads
from laggard.analysis.tables.load_run import load_run
from laggard.core.cost_model.limited_core import expected_efficiency
from laggard.core.hosts import Host
from laggard.predict.host_steps import RecordedSteps
from laggard.predict.planned_training import divide_shares
from laggard.scenario.load import Scenario
from laggard.virtual.client_times import ClientTimes, compute_client_times
from laggard.workloads.clients.client_partition import ClientPartition
from laggard.workloads.strategies.federated.parameters import FederatedParameters


@dataclass(frozen=True)
class _RecordedSpeed:
    """Speed of the hosts of recorded runs; another host of a tier is like them.

    Attributes:
        steps: their steps.
        shares: share of a core of each worker of the scenario, by host.
        overheads_s: what a step takes besides, on a whole core, by recorded host.
    """

    steps: RecordedSteps
    shares: Mapping[str, float]
    overheads_s: Mapping[str, float]

    def step_s(self, client: Host, samples: int) -> float:
        return self.steps.predict_usual_s(client, self.shares[client.name], samples)

    def overhead_s(self, client: Host, samples: int) -> float:  # noqa: ARG002
        share = self.shares[client.name]
        core_s = self.overheads_s.get(client.name)
        if core_s is None:
            core_s = statistics.median(self.overheads_s.values())
        return core_s / (share * expected_efficiency(min(share, 1.0)))


@dataclass(frozen=True)
class RecordedTimes:
    """Source of clients' times: the steps of recorded runs.

    What the server and messages take is measured on this machine: runs do not record it.

    Attributes:
        steps: steps of the hosts.
        overheads_s: what a step takes besides, on a whole core, by host.
    """

    steps: RecordedSteps
    overheads_s: Mapping[str, float]

    @classmethod
    def read(cls, runs: Sequence[Path], scenario: Scenario) -> RecordedTimes:
        """Read the steps of recorded runs.

        Args:
            runs: their run folders.
            scenario: scenario of the clients.

        Raises:
            InputError: a run has no step times, or its model is unknown.
        """
        steps = RecordedSteps.read(runs, scenario.workload)
        overheads_s: dict[str, float] = {}
        for run in runs:
            overheads_s.update(measure_overheads(load_run(run)))
        return cls(steps, overheads_s)

    def __call__(
        self, scenario: Scenario, strategy: FederatedParameters, partition: ClientPartition
    ) -> ClientTimes:
        """Return the times of all clients.

        Args:
            scenario: scenario with the shares of its hosts.
            strategy: its strategy.
            partition: samples of the clients.

        Raises:
            InputError: no host of a tier of the scenario was recorded.
        """
        speed = _RecordedSpeed(self.steps, divide_shares(scenario), self.overheads_s)
        return compute_client_times(speed, self.steps.handling, scenario, strategy, partition)
