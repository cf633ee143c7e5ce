"""Chameleon Cloud: nodes of bare metal, leased and deployed through the APIs of OpenStack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
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
    from laggard.layers_services.chameleon.client import ChameleonClient
    from laggard.layers_services.chameleon.description import ChameleonDescription
    from laggard.layers_services.chameleon.plan import ChameleonPlan
    from laggard.layers_services.environment.wheel_plan import Platform
    from laggard.layers_services.ssh.host_keys import ReservationKeys
    from laggard.remote.testbeds.named_reservation import JobsRecorder
    from laggard.run_folder.journal import Journal
    from laggard.scenario.load import Scenario


@dataclass(frozen=True)
class LeasePlan:
    """Lease of Chameleon that a run would make.

    Attributes:
        request: nodes by type.
        hosts: all hosts of the scenario, in order.
        folder: folder of the scenario, where a relative path of the RC file begins.
        warnings: empty; Chameleon ignores no setting.
        addresses: empty, since the nodes are not known yet.
    """

    request: ChameleonPlan
    hosts: tuple[Host, ...]
    folder: Path
    warnings: tuple[str, ...] = ()
    addresses: Mapping[str, str] = field(default_factory=dict)

    @property
    def expected_platforms(self) -> tuple[Platform, ...] | None:
        """Platforms of the nodes, as far as they are known; None if no nodes are reserved."""
        from laggard.layers_services.environment.expected_platforms import find_platform

        platform = find_platform(self.request.image)
        return () if platform is None else (platform,)

    def describe(self) -> ChameleonDescription:
        """Return the nodes by type."""
        from laggard.layers_services.chameleon.description import describe_chameleon

        return describe_chameleon(self.request)

    @contextmanager
    def reserve_nodes(self, journal: Journal) -> Iterator[ReservedNodes]:
        """Hold the nodes for the body of a `with`, and release them however it ends.

        Raises:
            InputError: Chameleon refuses the credentials.
            PrerequisiteError: there are no credentials.
            DeploymentError: Chameleon did not give the nodes.
        """
        from laggard.layers_services.chameleon.reserve import (
            WaitLimits,
            describe_release,
            hold_nodes,
        )

        def hold(name: str, keys: ReservationKeys, record: JobsRecorder) -> HeldReservation:
            client = _open_client(self.request.rc_file, self.folder)
            return hold_nodes(client, self.request, self.hosts, name, keys, record, WaitLimits())

        what = f"{len(self.hosts)} nodes of Chameleon Cloud"
        with hold_during(journal, what, hold, describe_release) as nodes:
            yield nodes


def _open_client(rc_file: str, folder: Path) -> ChameleonClient:
    from laggard.layers_services.chameleon.client import ChameleonClient
    from laggard.layers_services.chameleon.credentials import open_session, read_credentials

    credentials = read_credentials(rc_file, folder)
    return ChameleonClient(open_session(credentials), credentials.get("OS_REGION_NAME", ""))


@dataclass(frozen=True)
class ChameleonTestbed(RemoteTestbed):
    """Testbed of Chameleon Cloud."""

    name: ClassVar[str] = "chameleon"
    managers: ClassVar[ManagerSupport] = ManagerSupport("chameleon", own_machines=True)
    options: ClassVar[tuple[CommandOption, ...]] = ()

    @classmethod
    def from_options(cls, values: Mapping[str, OptionValue]) -> Self:
        """Create the testbed, which has no options of its own."""
        del values
        return cls()

    def plan_machines(self, scenario: Scenario) -> LeasePlan:
        """Plan the lease of one node per host.

        Raises:
            InputError: the layers do not describe nodes that can be leased.
        """
        from laggard.layers_services.chameleon.plan import plan_chameleon

        request = plan_chameleon(scenario.layers, scenario.sources.layers_services)
        return LeasePlan(request, tuple(scenario.hosts), scenario.folder)

    def release_jobs(self, owner_id: str, jobs: Sequence[ReservedJob]) -> tuple[ReservedJob, ...]:
        """Release the recorded leases of a run, with the credentials of the environment.

        Raises:
            InputError: the record lists a lease of another name, which was not released.
            LaggardError: Chameleon refuses the credentials, or does not answer.
        """
        from laggard.layers_services.chameleon.reserve import release_lease

        client = _open_client("", Path())
        return release_recorded(owner_id, jobs, lambda job: release_lease(client, job))

    def format_held_jobs(self, jobs: Sequence[ReservedJob]) -> str:
        """Return the command that ends each lease."""
        from laggard.layers_services.chameleon.reserve import describe_release

        return "\n".join(describe_release(job) for job in jobs)
