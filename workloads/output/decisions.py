"""Record of a strategy's decisions during training.

Each decision is written once for all ranks. `decisions.json` and the report contain them.
"""

from __future__ import annotations

import logging
import time

from laggard.workloads.output.worker_output import WorkerOutputDir, append_line

LOGGER = logging.getLogger(__name__)


def note_decision(output_dir: WorkerOutputDir, step: int, sentence: str) -> None:
    """Append one decision.

    Args:
        output_dir: folder that the processes of the training share.
        step: step in which the decision was made, or from which it applies.
        sentence: the decision and its reason.
    """
    append_line(
        output_dir.decisions,
        {"step": step, "time_ns": time.monotonic_ns(), "description": sentence},
    )
    LOGGER.info("step %d: %s", step, sentence)
