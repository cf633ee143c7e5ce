"""Interface of a testbed of real machines, and the values that it gives to a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

if TYPE_CHECKING:
    from laggard.core.run_schema import HostEnergy, ReservedJob
    from laggard.layers_services.e2clab.manager_support import ManagerSupport
    from laggard.layers_services.environment.prepare import Store
    from laggard.layers_services.environment.wheel_plan import Platform
    from laggard.layers_services.machine import Machine
    from laggard.layers_services.machine_description import MachineDescription
    from laggard.run_folder.journal import Journal
    from laggard.scenario.load import Scenario

OptionValue = str | float | bool | Path | tuple[str, ...]
"""Value of a command-line option; its type depends on `CommandOption.kind`."""


@dataclass(frozen=True)
class CommandOption:
    """Command-line option that belongs to one testbed.

    Attributes:
        flag: name with its dashes, such as `--walltime`.
        help: effect of the option, for `--help`.
        metavar: form of the value, for `--help`.
        kind: `text`, `texts` (the option may be repeated), `switch`, `file`, or `seconds`.
        default: value that is shown and used when the option is absent.
    """

    flag: str
    help: str
    metavar: str | None = None
    kind: str = "text"
    default: float | None = None

    @property
    def name(self) -> str:
        """Name of the value: the flag without leading dashes and with underscores."""
        return self.flag.removeprefix("--").replace("-", "_")


@dataclass(frozen=True)
class ReservedNodes:
    """Machines that a run may use.

    Attributes:
        machines: one machine per host, in the hosts' order.
        walltime_end_s: `time.monotonic()` at which the testbed takes the machines back; None for
            never.
        stores: folder for wheels on a machine, by host name; a missing host uses root's home.
    """

    machines: tuple[Machine, ...]
    walltime_end_s: float | None = None
    stores: Mapping[str, Store] = field(default_factory=dict)


class MachinePlan(Protocol):
    """Machines that a run would use; nothing is reserved yet."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about settings that have no effect."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """Address of every host, by name, if it is known before the reservation."""

    @property
    def expected_platforms(self) -> tuple[Platform, ...] | None:
        """Platforms of the nodes, as far as they are known; None if no nodes are reserved."""

    def describe(self) -> MachineDescription:
        """Return the text of `laggard plan`; may ask the testbed when the run could start."""

    def reserve_nodes(self, journal: Journal) -> AbstractContextManager[ReservedNodes]:
        """Hold the machines for the body of a `with`; release them however it ends.

        Raises:
            InputError: a named reservation cannot be used.
            DeploymentError: the testbed did not give the machines.
        """


@dataclass(frozen=True)
class SharedReservation:
    """Machines that are kept for several runs, one after the other.

    Attributes:
        walltime_end_s: `time.monotonic()` at which the testbed takes the machines back; None for
            never.
        jobs: jobs that hold the machines; empty if there are none.
    """

    walltime_end_s: float | None = None
    jobs: tuple[ReservedJob, ...] = ()

    def build_run_options(
        self,
        plan: MachinePlan,  # noqa: ARG002
        given: Sequence[str],
    ) -> tuple[str, ...]:
        """Return the options of a `laggard run` that uses these machines and keeps them.

        Args:
            plan: machine plan of the run.
            given: options of the user, each one word such as `--queue=default`.
        """
        return tuple(given)


@dataclass(frozen=True)
class ReservationSize:
    """Size of a reservation for several runs.

    Attributes:
        nodes: number of nodes that it takes; 0 if nothing is reserved.
        walltime_s: its length; None if the machines are kept for any time, or by others.
        renewable: whether another one can follow it.
    """

    nodes: int = 0
    walltime_s: float | None = None
    renewable: bool = False


JobsRecorder = Callable[["tuple[ReservedJob, ...]"], None]
"""Function that records all jobs of a reservation whenever one of them changes."""


class RemoteTestbed(ABC):
    """Testbed of real machines, with its command-line options.

    Attributes:
        name: value of `--on`, also in `run.json`.
        managers: E2Clab managers that the testbed supports.
        options: command-line options that belong to the testbed.
    """

    name: ClassVar[str]
    managers: ClassVar[ManagerSupport]
    options: ClassVar[tuple[CommandOption, ...]]

    @classmethod
    @abstractmethod
    def from_options(cls, values: Mapping[str, OptionValue]) -> Self:
        """Create the testbed from its command-line options.

        Args:
            values: option values, by `CommandOption.name`; options that were not given and have no
                default are absent.
        """

    @abstractmethod
    def plan_machines(self, scenario: Scenario) -> MachinePlan:
        """Choose the machines without starting or reserving anything.

        Raises:
            InputError: the inventory or the reservation cannot be used.
        """

    def has_power_meters(self, machines: Sequence[Machine]) -> bool:  # noqa: ARG002
        """Return whether the testbed meters the power of at least one of these machines."""
        return False

    def measure_energy(
        self,
        machines: Sequence[Machine],  # noqa: ARG002
        start_s: float,  # noqa: ARG002
        end_s: float,  # noqa: ARG002
    ) -> tuple[HostEnergy, ...]:
        """Return the energy of every metered host between two Unix times, in joules.

        Raises:
            LaggardError: the meters cannot be read.
        """
        return ()

    @contextmanager
    def reserve_together(
        self,
        plans: Sequence[MachinePlan],  # noqa: ARG002
        owner_id: str,  # noqa: ARG002
        on_jobs_changed: JobsRecorder,  # noqa: ARG002
    ) -> Iterator[SharedReservation]:
        """Hold machines for the runs of several plans, for the body of a `with`.

        A testbed without reservations keeps its machines anyway.

        Args:
            plans: machine plans that this testbed made, of runs that follow each other.
            owner_id: unique id, from which the jobs get their name.
            on_jobs_changed: called before and after every change of a job on the testbed.

        Raises:
            InputError: the plans do not fit into one reservation, or a named job cannot be used.
            DeploymentError: the testbed did not give the machines.
        """
        yield SharedReservation()

    def size_reservation(self, plans: Sequence[MachinePlan]) -> ReservationSize:  # noqa: ARG002
        """Return the size of one reservation for these plans.

        Raises:
            InputError: the plans do not fit into one reservation.
        """
        return ReservationSize()

    def release_jobs(
        self,
        owner_id: str,  # noqa: ARG002
        jobs: Sequence[ReservedJob],  # noqa: ARG002
    ) -> tuple[ReservedJob, ...]:
        """Release all jobs of a run or campaign, found by their record and name on the testbed.

        Args:
            owner_id: id from which the jobs got their name.
            jobs: recorded jobs.

        Returns:
            All jobs of this owner; `released` is set if the testbed confirmed the release.

        Raises:
            InputError: the record lists a job of another owner, which was not released.
            LaggardError: the testbed refuses the user, or does not answer.
        """
        return ()

    def format_held_jobs(self, jobs: Sequence[ReservedJob]) -> str:
        """Return instructions for jobs that are still held, one line per job."""
        return "\n".join(f"job {job.job_id} at {job.site} may still hold nodes" for job in jobs)
