"""FIT IoT-LAB: Raspberry Pi boards, reserved through the client of EnOSlib's provider."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

from laggard.layers_services.e2clab.manager_support import ManagerSupport
from laggard.remote.testbeds.named_reservation import (
    HeldReservation,
    hold_during,
    release_recorded,
)
from laggard.remote.testbeds.remote_testbed import (
    CommandOption,
    OptionValue,
    RemoteTestbed,
    ReservedNodes,
)

if TYPE_CHECKING:
    from laggard.core.hosts import Host
    from laggard.core.run_schema import ReservedJob
    from laggard.layers_services.environment.wheel_plan import Platform
    from laggard.layers_services.iotlab.description import IotlabDescription
    from laggard.layers_services.iotlab.plan import IotlabPlan
    from laggard.layers_services.ssh.host_keys import ReservationKeys
    from laggard.remote.testbeds.named_reservation import JobsRecorder
    from laggard.run_folder.journal import Journal
    from laggard.scenario.load import Scenario

RESERVATION_TIMEOUT_S = 900.0
"""Longest wait for the begin of an experiment, in seconds."""


@dataclass(frozen=True)
class ExperimentPlan:
    """Experiment of IoT-LAB that a run would make.

    Attributes:
        request: boards of all services.
        hosts: all hosts of the scenario, in order.
        warnings: empty; IoT-LAB ignores no setting.
        addresses: empty, since the boards are not known yet.
    """

    request: IotlabPlan
    hosts: tuple[Host, ...]
    warnings: tuple[str, ...] = ()
    addresses: Mapping[str, str] = field(default_factory=dict)

    @property
    def expected_platforms(self) -> tuple[Platform, ...] | None:
        """Platforms of the nodes, as far as they are known; None if no nodes are reserved."""
        return ()

    def describe(self) -> IotlabDescription:
        """Return the boards of every service."""
        from laggard.layers_services.iotlab.description import describe_iotlab

        return describe_iotlab(self.request)

    @contextmanager
    def reserve_nodes(self, journal: Journal) -> Iterator[ReservedNodes]:
        """Hold the boards for the body of a `with`, and release them however it ends.

        Raises:
            InputError: IoT-LAB refuses the account.
            DeploymentError: IoT-LAB did not give the boards.
        """
        from laggard.layers_services.iotlab.client import IotlabClient
        from laggard.layers_services.iotlab.reserve import describe_release, hold_boards

        def hold(name: str, keys: ReservationKeys, record: JobsRecorder) -> HeldReservation:
            return hold_boards(
                IotlabClient(), self.request, self.hosts, name, keys, record, RESERVATION_TIMEOUT_S
            )

        what = f"{len(self.hosts)} boards of FIT IoT-LAB"
        with hold_during(journal, what, hold, describe_release) as nodes:
            yield nodes


@dataclass(frozen=True)
class IotlabTestbed(RemoteTestbed):
    """Testbed of FIT IoT-LAB."""

    name: ClassVar[str] = "iotlab"
    managers: ClassVar[ManagerSupport] = ManagerSupport("iotlab", own_machines=True)
    options: ClassVar[tuple[CommandOption, ...]] = ()

    @classmethod
    def from_options(cls, values: Mapping[str, OptionValue]) -> Self:
        """Create the testbed, which has no options of its own."""
        del values
        return cls()

    def plan_machines(self, scenario: Scenario) -> ExperimentPlan:
        """Plan the reservation of one board per host.

        Raises:
            InputError: the layers do not describe boards that can train.
        """
        from laggard.layers_services.iotlab.plan import plan_iotlab

        request = plan_iotlab(scenario.layers, scenario.sources.layers_services)
        return ExperimentPlan(request, tuple(scenario.hosts))

    def release_jobs(self, owner_id: str, jobs: Sequence[ReservedJob]) -> tuple[ReservedJob, ...]:
        """Release the recorded experiments of a run.

        Raises:
            InputError: the record lists an experiment of another name, which was not released.
            LaggardError: the API refuses the user, or does not answer.
        """
        from laggard.layers_services.iotlab.client import IotlabClient
        from laggard.layers_services.iotlab.reserve import release_experiment

        client = IotlabClient()
        return release_recorded(owner_id, jobs, lambda job: release_experiment(client, job))

    def format_held_jobs(self, jobs: Sequence[ReservedJob]) -> str:
        """Return the command that ends each experiment."""
        from laggard.layers_services.iotlab.reserve import describe_release

        return "\n".join(describe_release(job) for job in jobs)
