"""Description of a planned lease for `laggard plan --on chameleon`."""

from __future__ import annotations

from collections.abc import Iterator

from laggard.core.run_schema import Record
from laggard.core.text.text_columns import align_columns
from laggard.layers_services.chameleon.plan import ChameleonPlan
from laggard.layers_services.machine_description import MachineDescription


class PlannedNodes(Record):
    """Nodes of one type."""

    node_type: str
    hosts: tuple[str, ...]


class ChameleonDescription(MachineDescription):
    """Planned lease of nodes."""

    groups: tuple[PlannedNodes, ...]
    minutes: int
    image: str
    key_name: str

    def format_lines(self) -> Iterator[str]:
        """Yield the nodes by type, line by line."""
        count = sum(len(group.hosts) for group in self.groups)
        yield f"Chameleon Cloud: {count} nodes with {self.image} for {self.minutes} minutes"
        yield from align_columns(
            [
                (f"{len(group.hosts)} {group.node_type}", ", ".join(group.hosts))
                for group in self.groups
            ]
        )
        yield "nothing has been reserved"


def describe_chameleon(plan: ChameleonPlan) -> ChameleonDescription:
    """Describe a planned lease."""
    return ChameleonDescription(
        groups=tuple(PlannedNodes(node_type=x.node_type, hosts=x.hosts) for x in plan.groups),
        minutes=plan.minutes,
        image=plan.image,
        key_name=plan.key_name,
    )
