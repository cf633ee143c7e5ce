"""Interface of a testbed of real machines, and what it gives a run."""

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
"""Value of an option of the command line, as its type says."""


@dataclass(frozen=True)
class CommandOption:
    """Option of the command line that belongs to one testbed.

    Attributes:
        flag: name with its dashes, such as `--walltime`.
        help: what it does, for `--help`.
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
        """Name of the value: the flag without dashes at its beginning, and with underscores."""
        return self.flag.removeprefix("--").replace("-", "_")


@dataclass(frozen=True)
class ReservedNodes:
    """Machines that a run may use.

    Attributes:
        machines: one per host, in the hosts' order.
        walltime_end_s: `time.monotonic()` at which the testbed takes them back; None: never.
        stores: folder for wheels on a machine, by host, where that is not root's home.
    """

    machines: tuple[Machine, ...]
    walltime_end_s: float | None = None
    stores: Mapping[str, Store] = field(default_factory=dict)


class MachinePlan(Protocol):
    """Machines that a run would use; nothing is reserved yet."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about settings without effect."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """Address of every host, by name, as far as it is known before the reservation."""

    def describe(self) -> MachineDescription:
        """Return what `laggard plan` shows; may ask the testbed when the run could start."""

    def reserve_nodes(self, journal: Journal) -> AbstractContextManager[ReservedNodes]:
        """Hold the machines for the body of a `with`; release them however it ends.

        Raises:
            InputError: a named reservation cannot be used.
            DeploymentError: the testbed did not give the machines.
        """


class RemoteTestbed(ABC):
    """Testbed of real machines, with the options that were given for it."""

    name: ClassVar[str]
    managers: ClassVar[ManagerSupport]
    options: ClassVar[tuple[CommandOption, ...]]

    @classmethod
    @abstractmethod
    def from_options(cls, values: Mapping[str, OptionValue]) -> Self:
        """Create the testbed from the options of the command line that were given.

        Args:
            values: by `CommandOption.name`; absent when not given and without a default.
        """

    @abstractmethod
    def plan_machines(self, scenario: Scenario) -> MachinePlan:
        """Choose the machines; nothing is started or reserved.

        Raises:
            InputError: the inventory or the reservation cannot be used.
        """

    def has_power_meters(self, machines: Sequence[Machine]) -> bool:  # noqa: ARG002
        """Return whether the testbed meters the power of one of these machines at least."""
        return False

    def measure_energy(
        self,
        machines: Sequence[Machine],  # noqa: ARG002
        start_s: float,  # noqa: ARG002
        end_s: float,  # noqa: ARG002
    ) -> tuple[HostEnergy, ...]:
        """Return the joules of every metered host between two Unix times.

        Raises:
            LaggardError: the meters cannot be read.
        """
        return ()

    def release_run(self, record: RunRecord) -> tuple[ReservedJob, ...]:  # noqa: ARG002
        """Release everything that a run holds, by its record and its name on the testbed.

        Returns:
            All its jobs, each `released` where the testbed confirmed it.

        Raises:
            LaggardError: the testbed refuses the user, or does not answer at all.
        """
        return ()

    def format_held_jobs(self, jobs: Sequence[ReservedJob]) -> str:
        """Return what the user can do about jobs that are still held, one line each."""
        return "\n".join(f"job {job.job_id} at {job.site} may still hold nodes" for job in jobs)
