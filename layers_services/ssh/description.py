"""Description of the inventory machines that a run would use; no machine is contacted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from laggard.core.run_schema import Record
from laggard.core.text.text_columns import align_columns
from laggard.layers_services.machine import Machine
from laggard.layers_services.machine_description import MachineDescription
from laggard.layers_services.ssh.host_keys import INVENTORY_RULE

SSH_PORT = 22


class InventoryMachine(Record):
    """Inventory machine that takes the place of a host, and its SSH login and gateway."""

    host: str
    reached: str
    gateway: str


class InventoryDescription(MachineDescription):
    """Machines of an inventory, in the order of the hosts."""

    machines: tuple[InventoryMachine, ...]
    host_keys: str

    def format_lines(self) -> Iterator[str]:
        """Yield a title, one line per machine, and the rule for host keys."""
        yield "machines"
        yield from align_columns([_format_row(machine) for machine in self.machines])
        yield f"host keys of the machines: {self.host_keys}"


def describe_inventory(machines: Sequence[Machine]) -> InventoryDescription:
    """Describe the machines assigned to the hosts of a scenario."""
    return InventoryDescription(
        machines=tuple(_describe_machine(each) for each in machines), host_keys=INVENTORY_RULE
    )


def _describe_machine(machine: Machine) -> InventoryMachine:
    access = machine.access
    port = f":{access.port}" if access.port != SSH_PORT else ""
    return InventoryMachine(
        host=machine.host.name,
        reached=f"{access.user}@{access.address}{port}",
        gateway=access.jumps_over,
    )


def _format_row(machine: InventoryMachine) -> tuple[str, ...]:
    return machine.host, machine.reached, f"through {machine.gateway}" if machine.gateway else ""
