"""Display of a run's alarms as they are raised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from laggard.analysis.detection.online.alarm_text import format_alarms
from laggard.core.hosts import Host
from laggard.core.run_schema import Alarm
from laggard.run_folder.display import Display


class AlarmDisplay:
    """Display of new lines of `alarms.jsonl`.

    Args:
        path: the file, which may not exist yet.
        hosts: hosts of the run, for their tiers.
        display: display that shows the alarms.
    """

    def __init__(self, path: Path, hosts: Sequence[Host], display: Display) -> None:
        self._path = path
        self._tiers: Mapping[str, str] = {host.name: host.layer for host in hosts}
        self._display = display
        self._offset = 0
        self._reported: frozenset[int] = frozenset()

    def update(self) -> None:
        """Show the alarms that were written since the last call."""
        alarms = self._read_new()
        for text in format_alarms(alarms, self._reported, self._tiers):
            self._display.show_message(text)
        self._reported |= {alarm.number for alarm in alarms}

    def _read_new(self) -> tuple[Alarm, ...]:
        if not self._path.exists() or self._path.stat().st_size <= self._offset:
            return ()
        with self._path.open("rb") as file:
            file.seek(self._offset)
            # The watcher may be writing: a last line without its end is read the next time.
            complete, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        return tuple(Alarm.model_validate_json(line) for line in complete.splitlines())
