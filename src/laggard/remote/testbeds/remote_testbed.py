"""Interface of a testbed of real machines, and the values that it gives to a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

if TYPE_CHECKING:
    from laggard.core.run_schema import HostEnergy, ReservedJob, RunRecord
    from laggard.layers_services.e2clab.manager_support import ManagerSupport
    from laggard.layers_services.environment.prepare import Store
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

    def describe(self) -> MachineDescription:
        """Return the text of `laggard plan`; may ask the testbed when the run could start."""

    def reserve_nodes(self, journal: Journal) -> AbstractContextManager[ReservedNodes]:
        """Hold the machines for the body of a `with`; release them however it ends.

        Raises:
            InputError: a named reservation cannot be used.
            DeploymentError: the testbed did not give the machines.
        """


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

    def release_run(self, record: RunRecord) -> tuple[ReservedJob, ...]:  # noqa: ARG002
        """Release all jobs of a run, found by its record and its name on the testbed.

        Returns:
            All jobs of the run; `released` is set if the testbed confirmed the release.

        Raises:
            InputError: the record lists a job of another run or user, which was not released.
            LaggardError: the testbed refuses the user, or does not answer.
        """
        return ()

    def format_held_jobs(self, jobs: Sequence[ReservedJob]) -> str:
        """Return instructions for jobs that are still held, one line per job."""
        return "\n".join(f"job {job.job_id} at {job.site} may still hold nodes" for job in jobs)
