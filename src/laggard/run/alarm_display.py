"""The alarms of a run, told on the display as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from laggard.analysis.detection.online.alarm_text import format_alarms
from laggard.core.hosts import Host
from laggard.core.run_schema import Alarm
from laggard.run_folder.display import Display


class AlarmDisplay:
    """Tells the display what has been added to `alarms.jsonl` since it was asked last.

    Args:
        path: the file; it may not be there.
        hosts: of the run, for their tiers.
        display: where it is told.
    """

    def __init__(self, path: Path, hosts: Sequence[Host], display: Display) -> None:
        self._path = path
        self._tiers: Mapping[str, str] = {host.name: host.layer for host in hosts}
        self._display = display
        self._offset = 0
        self._reported: frozenset[int] = frozenset()

    def update(self) -> None:
        """Tell what is new."""
        alarms = self._read_new()
        for text in format_alarms(alarms, self._reported, self._tiers):
            self._display.show_message(text)
        self._reported |= {alarm.number for alarm in alarms}

    def _read_new(self) -> tuple[Alarm, ...]:
        if not self._path.exists() or self._path.stat().st_size <= self._offset:
            return ()
        with self._path.open("rb") as file:
            file.seek(self._offset)
            complete, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        return tuple(Alarm.model_validate_json(line) for line in complete.splitlines())
