"""What a strategy decides while it trains: put down once for all ranks, for `decisions.json` and
the report.
"""

from __future__ import annotations

import logging
import time

from laggard.workloads.output.worker_output import WorkerOutputDir, append_line

LOGGER = logging.getLogger(__name__)


def note_decision(output_dir: WorkerOutputDir, step: int, sentence: str) -> None:
    """Put one down.

    Args:
        output_dir: of the training.
        step: that it was decided in, or holds from.
        sentence: what, and why.
    """
    append_line(
        output_dir.decisions,
        {"step": step, "time_ns": time.monotonic_ns(), "description": sentence},
    )
    LOGGER.info("step %d: %s", step, sentence)
