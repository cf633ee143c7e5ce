"""SSH testbed: the user's own machines, listed in an inventory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from laggard.core.errors import InputError
from laggard.layers_services.e2clab.manager_support import ManagerSupport
from laggard.remote.testbeds.remote_testbed import (
    CommandOption,
    OptionValue,
    RemoteTestbed,
    ReservedNodes,
)

if TYPE_CHECKING:
    from laggard.layers_services.environment.wheel_plan import Platform
    from laggard.layers_services.machine import Access, Machine
    from laggard.layers_services.ssh.description import InventoryDescription
    from laggard.layers_services.ssh.inventory import Inventory
    from laggard.run_folder.journal import Journal
    from laggard.scenario.load import Scenario


@dataclass(frozen=True)
class InventoryPlan:
    """Machines of an inventory, one per host, in the hosts' order."""

    machines: tuple[Machine, ...]
    warnings: tuple[str, ...] = ()

    @property
    def addresses(self) -> Mapping[str, str]:
        """Address of every host, by name."""
        return {machine.host.name: machine.host.address for machine in self.machines}

    @property
    def expected_platforms(self) -> tuple[Platform, ...] | None:
        """Platforms of the nodes, as far as they are known; None if no nodes are reserved."""
        return None

    def describe(self) -> InventoryDescription:
        """Return the machines and their SSH access, without contacting them."""
        from laggard.layers_services.ssh.description import describe_inventory

        return describe_inventory(self.machines)

    @contextmanager
    def reserve_nodes(self, journal: Journal) -> Iterator[ReservedNodes]:  # noqa: ARG002
        """Yield the machines; nothing needs to be reserved."""
        yield ReservedNodes(self.machines)


@dataclass(frozen=True)
class SshTestbed(RemoteTestbed):
    """Testbed of the user's own machines.

    Attributes:
        inventory: path of the inventory file; None if `--hosts` was not given.
    """

    name: ClassVar[str] = "ssh"
    managers: ClassVar[ManagerSupport] = ManagerSupport("ssh", own_machines=True)
    options: ClassVar[tuple[CommandOption, ...]] = (
        CommandOption("--hosts", "inventory file that lists the machines.", "FILE", "file"),
    )

    inventory: Path | None = None

    @classmethod
    def from_options(cls, values: Mapping[str, OptionValue]) -> Self:
        """Create the testbed from `--hosts`."""
        inventory = values.get("hosts")
        return cls(inventory if isinstance(inventory, Path) else None)

    def plan_machines(self, scenario: Scenario) -> InventoryPlan:
        """Assign a machine of the inventory to every host.

        Raises:
            InputError: there is no inventory, it cannot be read, or it has too few machines.
        """
        from laggard.layers_services.ssh.inventory import assign

        return InventoryPlan(assign(self._read_inventory(), scenario.hosts))

    def list_accesses(self) -> tuple[Access, ...]:
        """Return the SSH access to every machine of the inventory.

        Raises:
            InputError: there is no inventory, or it cannot be read.
        """
        return tuple(each.access for each in self._read_inventory().machines)

    def _read_inventory(self) -> Inventory:
        from laggard.layers_services.ssh.inventory import parse_inventory

        if self.inventory is None:
            raise InputError(
                "--on ssh needs an inventory: list the machines in a file and give its path with"
                " --hosts"
            )
        try:
            content = self.inventory.read_bytes()
        except OSError as error:
            raise InputError(
                f"{self.inventory}: cannot read the inventory ({error.strerror}) — give the path of"
                " a readable file with --hosts"
            ) from error
        return parse_inventory(content, self.inventory)
