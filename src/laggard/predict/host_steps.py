"""Seconds of a step on every host of a scenario, from this machine or from recorded runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from laggard.analysis.cost_model.host_measurements import HostKind
from laggard.core.cost_model.demand import ModelDemand, StepDemand
from laggard.core.cost_model.message_handling import MessageHandling
from laggard.core.cost_model.step_cost import StepPrediction
from laggard.core.cost_model.step_seconds import StepSeconds
from laggard.core.errors import InputError
from laggard.core.hosts import Host
from laggard.predict.machine_speed import MachineSpeed, measure_machine_speed
from laggard.predict.planned_training import MessageSizes, divide_shares
from laggard.predict.step_times import HostCosts, fit_host_costs, measure_demand
from laggard.scenario.load import Scenario
from laggard.workloads.workload import Workload

_FEW_SAMPLES = 2


@dataclass(frozen=True)
class HostSteps:
    """Seconds of a step of every rank.

    Attributes:
        seconds: seconds of every rank, [W].
        notes: sentences about steps that are unlike the measured ones.
    """

    seconds: tuple[StepSeconds, ...]
    notes: tuple[str, ...] = ()


class StepForecaster(Protocol):
    """Source of the seconds of steps.

    Attributes:
        messages: sizes of messages.
        handling: processor time of messages and updates.
    """

    @property
    def messages(self) -> MessageSizes: ...

    @property
    def handling(self) -> MessageHandling: ...

    def forecast(self, scenario: Scenario) -> HostSteps:
        """Return the seconds of a step of every rank, without waits for others."""


@dataclass(frozen=True)
class MachineSteps:
    """Steps on shares of a core of this machine, as the local testbed emulates them.

    Attributes:
        speed: measured speed of a whole core.
    """

    speed: MachineSpeed

    @classmethod
    def measure(cls, scenarios: Sequence[Scenario]) -> MachineSteps:
        """Measure the steps of scenarios that differ in their numbers of workers only."""
        sizes = [count_samples(each) for each in scenarios]
        return cls(measure_machine_speed(scenarios[0].workload, sizes))

    @property
    def messages(self) -> MessageSizes:
        """Return the sizes of messages."""
        return MessageSizes(float(self.speed.parameter_bytes), self.speed.buffer_bytes)

    @property
    def handling(self) -> MessageHandling:
        """Return the processor time of messages and updates."""
        return self.speed.handling

    def forecast(self, scenario: Scenario) -> HostSteps:
        """Return the seconds of a step of every rank, without waits for others."""
        samples, shares = count_samples(scenario), divide_shares(scenario)
        step = self.speed.step(samples)
        return HostSteps(
            tuple(
                step.scaled(1 / shares[rank.name], self.fetch_s(scenario, rank, samples))
                for rank in scenario.ranks
            )
        )

    def fetch_s(self, scenario: Scenario, host: Host, samples: int) -> float:
        """Return the seconds in which a host with a limited drive reads the samples of a step."""
        drive = scenario.drives.get(host.name)
        if drive is None or scenario.workload.samples in ("warm", "prepared"):
            return 0.0
        read_bytes = self.speed.sample_bytes * samples
        reading_s = 0.0 if drive.read_mb_per_s is None else read_bytes / drive.read_mb_per_s / 1e6
        return reading_s + drive.read_latency_ms / 1e3 * self.speed.step_accesses(samples)


@dataclass(frozen=True)
class RecordedSteps:
    """Steps on the hosts of recorded runs.

    Attributes:
        costs: cost models of the hosts.
        demand: demand of the scenario's model.
        machine: speed of this machine: runs do not record the processor time of messages.
    """

    costs: HostCosts
    demand: ModelDemand
    machine: MachineSpeed

    @classmethod
    def read(cls, runs: Sequence[Path], workload: Workload) -> RecordedSteps:
        """Fit cost models to recorded runs.

        Raises:
            InputError: a run has no step times, or its model is unknown.
        """
        demand = measure_demand(workload.model, workload.dataset.model_dump(by_alias=True))
        machine = measure_machine_speed(workload, (_FEW_SAMPLES,))
        return cls(fit_host_costs(runs), demand, machine)

    @property
    def messages(self) -> MessageSizes:
        """Return the sizes of messages."""
        return MessageSizes(float(self.demand.parameter_bytes), self.machine.buffer_bytes)

    @property
    def handling(self) -> MessageHandling:
        """Return the processor time of messages and updates on this machine."""
        return self.machine.handling

    def forecast(self, scenario: Scenario) -> HostSteps:
        """Return the seconds of a step of every rank, without waits for others.

        A host that was not recorded is like a recorded one of its tier. The seconds on another
        share of a core are in inverse proportion to it. A host has as many workers as in the runs.

        Raises:
            InputError: no host of a tier was recorded.
        """
        demand, shares = self.demand.step(count_samples(scenario)), scenario.shares
        found = {}
        for rank in scenario.ranks:
            if rank.name not in found:
                found[rank.name] = self._predict(rank, shares[rank.name], demand)
        notes = {
            f"{rank.layer}: {each}, so its steps are extrapolated": None
            for rank in scenario.ranks
            for each in found[rank.name][1].outside
        }
        return HostSteps(tuple(found[rank.name][0] for rank in scenario.ranks), tuple(notes))

    def predict_usual_s(self, host: Host, share: float, samples: int) -> float:
        """Return the seconds of a usual step with a number of samples on a share of a core.

        Raises:
            InputError: no host of the tier was recorded.
        """
        return self._predict(host, share, self.demand.step(samples))[0].usual_s

    def _predict(
        self, host: Host, share: float, demand: StepDemand
    ) -> tuple[StepSeconds, StepPrediction]:
        kind = min(self._list_kinds(host), key=lambda each: abs(math.log(each.cpu_share / share)))
        predicted = self.costs.kinds[kind].predict(demand)
        # The interval of a cost model need not contain the fit of all models.
        seconds = StepSeconds(
            min(predicted.low_s, predicted.seconds),
            predicted.seconds,
            max(predicted.high_s, predicted.seconds),
        )
        return seconds.scaled(kind.cpu_share / share), predicted

    def _list_kinds(self, host: Host) -> tuple[HostKind, ...]:
        if host.name in self.costs.hosts:
            return self.costs.hosts[host.name]
        tier = f"{host.layer}."
        kinds = {
            kind: None
            for name, own in self.costs.hosts.items()
            if name.startswith(tier)
            for kind in own
        }
        if not kinds:
            raise InputError(
                f"{host.name}: no host of the tier {host.layer} is in the recorded runs — give a"
                " run that has one, or leave out --from"
            )
        return tuple(kinds)


def count_samples(scenario: Scenario) -> int:
    """Return the samples of a step of one worker of a scenario."""
    return scenario.workload.count_worker_samples(len(scenario.ranks))
