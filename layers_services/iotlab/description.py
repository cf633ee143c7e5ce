"""Description of a planned reservation for `laggard plan --on iotlab`."""

from __future__ import annotations

from collections.abc import Iterator

from laggard.core.run_schema import Record
from laggard.core.text.text_columns import align_columns
from laggard.layers_services.iotlab.plan import IotlabPlan
from laggard.layers_services.machine_description import MachineDescription


class PlannedBoards(Record):
    """Boards that serve one service at one site."""

    site: str
    archi: str
    boards: tuple[str, ...]
    hosts: tuple[str, ...]


class IotlabDescription(MachineDescription):
    """Planned reservation of boards."""

    groups: tuple[PlannedBoards, ...]
    minutes: int

    def format_lines(self) -> Iterator[str]:
        """Yield the boards of every service, line by line."""
        count = sum(len(group.hosts) for group in self.groups)
        yield f"FIT IoT-LAB: {count} boards for {self.minutes} minutes"
        yield from align_columns(
            [
                (group.site, ", ".join(group.boards) or group.archi, ", ".join(group.hosts))
                for group in self.groups
            ]
        )
        yield "nothing has been reserved"


def describe_iotlab(plan: IotlabPlan) -> IotlabDescription:
    """Describe a planned reservation."""
    groups = (
        PlannedBoards(site=each.site, archi=each.archi, boards=each.boards, hosts=each.hosts)
        for each in plan.groups
    )
    return IotlabDescription(groups=tuple(groups), minutes=plan.minutes)
