"""The drives of a running continuum: made, changed and counted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from laggard.core.emulated_drive import Drive, DriveCounters, DriveLimits, make_drive
from laggard.core.errors import EmulationError


class DriveSet:
    """All drives of a run, in real units; use it as a context manager.

    Attributes:
        paths: the file of every drive, by host; a host that is not there has none, and is not
            limited.
    """

    def __init__(self, drives: Mapping[str, Drive], paths: Mapping[str, Path]) -> None:
        self._drives = dict(drives)
        self.paths = dict(paths)

    @classmethod
    def make(
        cls, folder: Path, limits: Mapping[str, DriveLimits], sharers: Mapping[str, int]
    ) -> Self:
        """Make the drives.

        Args:
            folder: for their files, in memory best; made where missing.
            limits: of each host's drive, real.
            sharers: how many workers each host has.
        """
        folder.mkdir(parents=True, exist_ok=True)
        paths = {host: folder / host for host in limits}
        return cls(
            {host: make_drive(paths[host], limits[host], sharers.get(host, 1)) for host in limits},
            paths,
        )

    def set_limits(self, host: str, limits: DriveLimits) -> int:
        """Give a drive other limits, also while it serves.

        Returns:
            CLOCK_MONOTONIC nanoseconds when nothing is served by the old ones any more.

        Raises:
            EmulationError: no such drive.
        """
        if host not in self._drives:
            raise EmulationError(
                f"{host} has no drive to change; plan one for every host that an event names"
            )
        return self._drives[host].set_limits(limits)

    def counters(self) -> Mapping[str, DriveCounters]:
        """What every drive was asked for."""
        return {host: drive.counters() for host, drive in self._drives.items()}

    def reset_counters(self) -> None:
        """Count from zero again."""
        for drive in self._drives.values():
            drive.reset_counters()

    def close(self) -> None:
        """Leave the drives; their files go with the folder."""
        for drive in self._drives.values():
            drive.close()
        self._drives.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
