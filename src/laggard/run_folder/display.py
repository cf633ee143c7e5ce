"""Display of a run in progress: stages on any output, a moving line on a terminal only.

This module starts no thread, because the run forks, and threads do not survive a fork. Therefore
the line moves only when a caller updates it.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from laggard.core.text.terminal_output import discard_output, print_text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@dataclass(frozen=True)
class TrainingState:
    """Progress of a training, in virtual time.

    Attributes:
        step: number of finished steps.
        fraction: finished fraction of the training, from 0 to 1.
        samples_per_s: samples of all ranks per second.
        loss: last loss.
        accuracy: last accuracy.
        elapsed_s: seconds since the first step began.
        remaining_s: upper bound of the remaining seconds (the accuracy may end training earlier).
    """

    step: int
    fraction: float
    samples_per_s: float | None
    loss: float | None
    accuracy: float | None
    elapsed_s: float
    remaining_s: float | None

    def to_text(self) -> str:
        """Format the state as one line."""
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
    """Output of a run's progress."""

    def stage(self, name: str, detail: str = "") -> None:
        """Show that a new stage begins."""

    def show_training(self, state: TrainingState) -> None:
        """Show the progress of the training."""

    def show_message(self, text: str) -> None:
        """Show an event that is worth a line of its own."""

    def close(self) -> None:
        """End the display; it is safe to call this twice."""


class SilentDisplay:
    """Display for `--json`, which prints nothing."""

    def stage(self, name: str, detail: str = "") -> None:
        """Do nothing (see `Display`)."""

    def show_training(self, state: TrainingState) -> None:
        """Do nothing (see `Display`)."""

    def show_message(self, text: str) -> None:
        """Do nothing (see `Display`)."""

    def close(self) -> None:
        """Do nothing (see `Display`)."""


class TextDisplay:
    """Display of stages as lines on standard error.

    The training line moves on a terminal. Elsewhere it is repeated every `REPEAT_S` seconds.
    """

    REPEAT_S = 15.0

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._last_line = self._started
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def stage(self, name: str, detail: str = "") -> None:
        """Print the stage as a line."""
        self.show_message(f"{name}{': ' + detail if detail else ''}")

    def show_training(self, state: TrainingState) -> None:
        """Move the training line, or print it if the last one is old enough."""
        if sys.stderr.isatty():
            self._update_bar(state)
        elif time.monotonic() - self._last_line >= self.REPEAT_S:
            self._last_line = time.monotonic()
            self.stage("train", state.to_text())

    def show_message(self, text: str) -> None:
        """Print a line; the moving line begins again below it."""
        self.close()
        elapsed = time.monotonic() - self._started
        print_text(f"[{elapsed:6.1f} s] {text}", err=True)

    def close(self) -> None:
        """Remove the moving line."""
        progress, self._progress, self._task = self._progress, None, None
        if progress is not None:
            try:
                progress.stop()
            except OSError:
                discard_output(sys.stderr)

    def _update_bar(self, state: TrainingState) -> None:
        try:
            if self._progress is None or self._task is None:
                self._progress, self._task = _create_progress_bar()
            self._progress.update(
                self._task, completed=min(1.0, state.fraction), description=state.to_text()
            )
            self._progress.refresh()
        except OSError:
            discard_output(sys.stderr)


def _create_progress_bar() -> tuple[Progress, TaskID]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (BarColumn(bar_width=20), TextColumn("{task.description}"))
    # Automatic refreshing would start a thread.
    progress = Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
    progress.start()
    return progress, progress.add_task("", total=1.0)
