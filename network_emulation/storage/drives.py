"""Drives of a running continuum: creation, changes and counters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from laggard.core.emulated_drive import Drive, DriveCounters, DriveLimits, make_drive
from laggard.core.errors import EmulationError


class DriveSet:
    """All drives of a run, in real units; use it as a context manager.

    Attributes:
        paths: file of every drive, by host; a host without an entry has no drive and is not
            limited.
    """

    def __init__(self, drives: Mapping[str, Drive], paths: Mapping[str, Path]) -> None:
        self._drives = dict(drives)
        self.paths = dict(paths)

    @classmethod
    def make(
        cls, folder: Path, limits: Mapping[str, DriveLimits], sharers: Mapping[str, int]
    ) -> Self:
        """Create the drives.

        Args:
            folder: folder for their files, best in memory; it is created if missing.
            limits: real limits of each host's drive.
            sharers: number of workers of each host.
        """
        folder.mkdir(parents=True, exist_ok=True)
        paths = {host: folder / host for host in limits}
        return cls(
            {host: make_drive(paths[host], limits[host], sharers.get(host, 1)) for host in limits},
            paths,
        )

    def set_limits(self, host: str, limits: DriveLimits) -> int:
        """Change the limits of a drive, also while it serves.

        Returns:
            CLOCK_MONOTONIC nanoseconds from which nothing is served under the old limits.

        Raises:
            EmulationError: if the host has no drive.
        """
        if host not in self._drives:
            raise EmulationError(
                f"{host} has no emulated drive to change; plan a drive for every host that a"
                " storage event names"
            )
        return self._drives[host].set_limits(limits)

    def counters(self) -> Mapping[str, DriveCounters]:
        """Return the requests that every drive has received."""
        return {host: drive.counters() for host, drive in self._drives.items()}

    def reset_counters(self) -> None:
        """Reset the counters to zero."""
        for drive in self._drives.values():
            drive.reset_counters()

    def close(self) -> None:
        """Close the drives; their files are removed with the folder."""
        for drive in self._drives.values():
            drive.close()
        self._drives.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
