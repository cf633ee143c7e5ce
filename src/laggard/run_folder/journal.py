"""Journal of one run: its record, which is written to disk at every change."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from laggard.core.errors import OutputError
from laggard.core.run_schema import RunRecord, StageDuration
from laggard.run_folder.display import Display
from laggard.run_folder.store import RunFolder, load_record


@dataclass
class Journal:
    """Growing record of a run, with the real duration of its stages.

    Attributes:
        record: current record.
        folder: run folder that contains it.
        display: display that shows the stages.
        stages: finished stages.
    """

    record: RunRecord
    folder: RunFolder
    display: Display
    stages: list[StageDuration] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str, detail: str = "") -> Iterator[None]:
        """Show a stage and measure its duration."""
        self.display.stage(name, detail)
        began = time.monotonic()
        try:
            yield
        except BaseException:
            # The reason for the end of the stage matters more than its duration.
            with suppress(OutputError):
                self._record_stage(name, began)
            raise
        self._record_stage(name, began)

    def _record_stage(self, name: str, began: float) -> None:
        self.stages.append(StageDuration(name=name, seconds=round(time.monotonic() - began, 3)))
        self.update(stages=tuple(self.stages))

    def update(self, **changes: object) -> None:
        """Change fields of the record, and write it; with a last status, also its time."""
        if changes.get("status", "running") != "running":
            changes.setdefault("ended", datetime.now(UTC).isoformat(timespec="seconds"))
        self.record = self.record.model_copy(update=changes)
        self.folder.write_record(self.record)

    def warn(self, warnings: Sequence[str]) -> None:
        """Add to the record's warnings."""
        if warnings:
            self.update(warnings=(*self.record.warnings, *warnings))

    def reload(self) -> None:
        """Read the record again, after the process in the sandbox has changed it."""
        self.record = load_record(self.folder.path)
        self.stages = list(self.record.stages)
