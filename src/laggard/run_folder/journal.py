"""Journal of one run: its record, kept on disk at every change."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from laggard.core.run_schema import RunRecord, StageDuration
from laggard.run_folder.display import Display
from laggard.run_folder.store import RunFolder, load_record


@dataclass
class Journal:
    """The record of a run as it grows, on disk at every change; its stages take real seconds."""

    record: RunRecord
    folder: RunFolder
    display: Display
    stages: list[StageDuration] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str, detail: str = "") -> Iterator[None]:
        """Tell of a stage and time it."""
        self.display.stage(name, detail)
        began = time.monotonic()
        try:
            yield
        finally:
            self.stages.append(StageDuration(name=name, seconds=round(time.monotonic() - began, 3)))
            self.update(stages=tuple(self.stages))

    def update(self, **changes: object) -> None:
        """Change the record."""
        self.record = self.record.model_copy(update=changes)
        self.folder.write_record(self.record)

    def warn(self, warnings: Sequence[str]) -> None:
        """Add to the record's warnings."""
        if warnings:
            self.update(warnings=(*self.record.warnings, *warnings))

    def reload(self) -> None:
        """Read what the process in the sandbox has written since."""
        self.record = load_record(self.folder.path)
        self.stages = list(self.record.stages)
