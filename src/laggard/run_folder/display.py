"""What a person sees while a run is under way: the stages on any output, a moving line only on a
terminal.

Nothing here starts a thread: the run forks, and a forked thread is a dead one. The line moves when
it is told to.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@dataclass(frozen=True)
class TrainingState:
    """Where training stands, in virtual time; `remaining_s` is an upper bound (accuracy may end it
    earlier).
    """

    step: int
    fraction: float
    samples_per_s: float | None
    loss: float | None
    accuracy: float | None
    elapsed_s: float
    remaining_s: float | None

    def to_text(self) -> str:
        """The state as one line."""
        parts = [f"step {self.step}"]
        if self.samples_per_s is not None:
            parts.append(f"{self.samples_per_s:.0f} samples/s")
        if self.loss is not None:
            parts.append(f"loss {self.loss:.3f}")
        if self.accuracy is not None:
            parts.append(f"accuracy {100 * self.accuracy:.1f} %")
        if self.remaining_s is not None:
            parts.append(f"at most {_format_duration(self.remaining_s)} left")
        return " · ".join(parts)


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes}:{rest:02d}"


class Display(Protocol):
    """Where the run tells how it goes."""

    def stage(self, name: str, detail: str = "") -> None:
        """A new stage begins."""

    def show_training(self, state: TrainingState) -> None:
        """Training moved on."""

    def show_message(self, text: str) -> None:
        """Something happened that is worth a line of its own."""

    def close(self) -> None:
        """Nothing more will be said; safe to call twice."""


class SilentDisplay:
    """For `--json`: says nothing."""

    def stage(self, name: str, detail: str = "") -> None:
        """See `Display`."""

    def show_training(self, state: TrainingState) -> None:
        """See `Display`."""

    def show_message(self, text: str) -> None:
        """See `Display`."""

    def close(self) -> None:
        """See `Display`."""


class TextDisplay:
    """Stages as lines on standard error; the training line moves on a terminal and is repeated
    rarely elsewhere.
    """

    REPEAT_S = 15.0

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._last_line = self._started
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def stage(self, name: str, detail: str = "") -> None:
        """See `Display`."""
        self.show_message(f"{name}{': ' + detail if detail else ''}")

    def show_training(self, state: TrainingState) -> None:
        """See `Display`."""
        if sys.stderr.isatty():
            self._update_bar(state)
        elif time.monotonic() - self._last_line >= self.REPEAT_S:
            self._last_line = time.monotonic()
            self.stage("train", state.to_text())

    def show_message(self, text: str) -> None:
        """See `Display`; the moving line begins anew below."""
        self.close()
        elapsed = time.monotonic() - self._started
        sys.stderr.write(f"[{elapsed:6.1f} s] {text}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """See `Display`."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = self._task = None

    def _update_bar(self, state: TrainingState) -> None:
        if self._progress is None or self._task is None:
            self._progress, self._task = _create_progress_bar()
        self._progress.update(
            self._task, completed=min(1.0, state.fraction), description=state.to_text()
        )
        self._progress.refresh()


def _create_progress_bar() -> tuple[Progress, TaskID]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (BarColumn(bar_width=20), TextColumn("{task.description}"))
    progress = Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
    progress.start()
    return progress, progress.add_task("", total=1.0)
