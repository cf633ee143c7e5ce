"""Registry of the commands whose cells need no continuum, one entry per command."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from laggard.campaign.tasks.analyze_task import AnalyzeTask
from laggard.campaign.tasks.cell_task import CellTask
from laggard.campaign.tasks.evaluate_task import EvaluateTask
from laggard.campaign.tasks.forecast_tasks import PredictTask, SimulateTask
from laggard.core.errors import InputError, LaggardError

TASKS: Mapping[str, type[CellTask]] = {
    "analyze": AnalyzeTask,
    "evaluate": EvaluateTask,
    "predict": PredictTask,
    "simulate": SimulateTask,
}
"""Tasks by the name that `command` of a campaign file uses."""


def run_task(command: str, values: Mapping[str, JsonValue], folder: str) -> dict[str, object]:
    """Compute one task in a worker process.

    Args:
        command: name of the command.
        values: values of its keys.
        folder: folder of the campaign file.

    Returns:
        Its document, with `status`, `error` and `elapsed_s`.
    """
    began_s = time.monotonic()
    document: dict[str, object]
    try:
        task = TASKS[command].model_validate(values)
        document = {**task.compute(Path(folder)), "status": "done"}
    except LaggardError as error:
        status = "invalid" if isinstance(error, InputError) else "failed"
        document = {"status": status, "error": str(error)}
    # A file's content or the machine is the usual reason of these, as for every command.
    except (OSError, ValueError, MemoryError, RecursionError) as error:
        document = {"status": "failed", "error": f"{type(error).__name__}: {error}".strip(": ")}
    return {**document, "elapsed_s": time.monotonic() - began_s}
