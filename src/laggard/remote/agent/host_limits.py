"""Storage and memory limits of a node's host: its drive and the watch over its workers' memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from pydantic import JsonValue, TypeAdapter

from laggard.core.emulated_drive import DriveLimits
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.memory.watch import MemoryWatch
from laggard.network_emulation.storage.drives import DriveSet
from laggard.network_emulation.storage.measure import verify_drives
from laggard.remote.agent.messages import AgentPlan, MemoryExceeded
from laggard.remote.agent.node_clock import NodeClock

_LIMITS = TypeAdapter(DriveLimits)
_REAL_TIME = Dilation(1.0)


def get_drive_folder(run: Path) -> Path:
    """Return the folder for the drive's file, below the run's folder on a node."""
    return run / "drives"


class HostLimits:
    """Drive and memory limits of one node's host.

    Args:
        plan: plan of the agent.
        clock: map between this node's clock and the reference clock.
    """

    def __init__(self, plan: AgentPlan, clock: NodeClock) -> None:
        self._plan, self._clock = plan, clock
        drives = {} if plan.drive is None else {plan.host: plan.drive}
        self._drives = DriveSet.make(
            get_drive_folder(Path(plan.folder)), drives, {plan.host: len(plan.workers)}
        )
        self._memory = MemoryWatch(
            {} if plan.memory_bytes is None else {plan.host: plan.memory_bytes}
        )

    def list_handlers(self) -> Mapping[str, Callable[[Mapping[str, JsonValue]], JsonValue]]:
        """Return the handlers of requests, by operation name."""
        return {
            "verify_drive": self.verify_drive,
            "set_drive": self.set_drive,
            "usage": self.report_usage,
        }

    def verify_drive(self, _: Mapping[str, JsonValue]) -> JsonValue:
        """Measure the drive and return the fidelity checks."""
        if self._plan.drive is None:
            return []
        checks = verify_drives({self._plan.host: self._plan.drive}, self._drives.paths, _REAL_TIME)
        # The transfers of the checks must not count as those of the training.
        self._drives.reset_counters()
        return [check.model_dump(mode="json") for check in checks]

    def set_drive(self, argument: Mapping[str, JsonValue]) -> JsonValue:
        """Change the drive's limits and return when the change was in effect, reference clock.

        `argument` has the fields of `DriveLimits`.
        """
        return self._clock.to_reference(
            self._drives.set_limits(self._plan.host, _LIMITS.validate_python(dict(argument)))
        )

    def report_usage(self, _: Mapping[str, JsonValue]) -> JsonValue:
        """Return the drive's counters and the peak memory of the workers; null if not limited."""
        drive = self._drives.counters().get(self._plan.host)
        return {
            "drive": None if drive is None else asdict(drive),
            "peak_bytes": self._memory.peaks.get(self._plan.host),
        }

    def check_memory(self, ranks: Mapping[int, int]) -> Iterable[MemoryExceeded]:
        """Yield a message if the workers hold too much memory; checks only when a check is due.

        Args:
            ranks: rank of every worker, by process id.
        """
        overrun = self._memory.look((self._plan.host, pid) for pid in ranks)
        if overrun is not None:
            yield MemoryExceeded(rank=ranks[overrun.pid], text=str(overrun))

    def close(self) -> None:
        """Close the drive; its file is deleted with the run's folder."""
        self._drives.close()
