"""Number of workers that fill a parameter server, from measured speeds of few workers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.cost_model.server_queue import ServerQueue, fit_server_queue
from laggard.core.errors import InputError
from laggard.core.files.csv_rows import read_csv_rows
from laggard.core.files.input_files import read_bounded
from laggard.core.text.text_columns import align_columns

if TYPE_CHECKING:
    from pydantic import JsonValue

MAX_BYTES = 4 << 20
MAX_WORKERS = 10_000
_COLUMNS = (
    "write workers,steps_per_s in the first line, and for example 1,6.8 in the others: the steps"
    " per second of all workers together"
)


@dataclass(frozen=True)
class ServerKnee:
    """Prediction of the speeds of workers that share a server.

    Attributes:
        measured: measured steps per second of all workers together, by their number.
        queue: the queue that fits them.
        speeds: predicted steps per second, by the number of workers.
    """

    measured: Mapping[int, float]
    queue: ServerQueue
    speeds: Mapping[int, float]

    def format(self) -> str:
        """Format the prediction as text."""
        rows = [["workers", "steps/s", "measured", "of the server's speed"]]
        most = 1 / self.queue.service_s
        for workers in sorted({*self.measured, *self.speeds}):
            speed, known = self.queue.speed(workers), self.measured.get(workers)
            rows.append(
                [
                    f"{workers}",
                    f"{speed:.4g}",
                    "" if known is None else f"{known:.4g}",
                    f"{100 * speed / most:.0f} %",
                ]
            )
        title = (
            f"{self.queue.knee:.1f} workers fill the server, which serves at most {most:.4g}"
            f" steps/s ({1e3 * self.queue.service_s:.3g} ms each); a worker alone needs"
            f" {1e3 * self.queue.think_s:.4g} ms besides"
        )
        return "\n".join([title, *align_columns(rows)])

    def build_document(self) -> dict[str, JsonValue]:
        """Return the prediction as a document."""
        return {
            "knee_workers": self.queue.knee,
            "service_s": self.queue.service_s,
            "think_s": self.queue.think_s,
            "measured": {str(workers): speed for workers, speed in self.measured.items()},
            "predicted": {str(workers): speed for workers, speed in self.speeds.items()},
        }


def predict_server_knee(
    path: Path, workers: tuple[int, ...], expected_service_s: float | None = None
) -> ServerKnee:
    """Predict the speeds of more workers of one parameter server.

    Args:
        path: CSV with the columns `workers` and `steps_per_s`; several lines of one number of
            workers count by their mean.
        workers: numbers of workers to predict.
        expected_service_s: seconds of the server for one step of one worker, if they are known.

    Raises:
        InputError: the file is no such table, or the expected service is impossible.
    """
    measured = parse_speeds(read_bounded(path, MAX_BYTES), str(path))
    queue = fit_server_queue(measured, expected_service_s)
    return ServerKnee(measured, queue, {each: queue.speed(each) for each in workers})


def parse_speeds(data: bytes, name: str) -> Mapping[int, float]:
    """Parse measured speeds by the number of workers.

    Args:
        data: content of the file.
        name: name of the file in messages.

    Raises:
        InputError: the content is no such table; with the line.
    """
    found: dict[int, list[float]] = {}
    for line, row in read_csv_rows(data, name, ("workers", "steps_per_s"), _COLUMNS):
        number, text = row["workers"], row["steps_per_s"]
        if not (number.isascii() and number.isdigit() and 1 <= int(number[:6]) <= MAX_WORKERS):
            raise InputError(
                f"{name}:{line}: {number!r} workers must be 1 to {MAX_WORKERS:,} — {_COLUMNS}"
            )
        try:
            speed = float(text)
        except ValueError:
            speed = math.nan
        if not 0 < speed < math.inf:
            raise InputError(
                f"{name}:{line}: {text!r} steps per second must be above 0 — {_COLUMNS}"
            )
        found.setdefault(int(number), []).append(speed)
    if not found:
        raise InputError(f"{name}: has no speeds — {_COLUMNS}")
    return {workers: math.fsum(each) / len(each) for workers, each in sorted(found.items())}
