"""Output and exit status of a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.errors import EXIT_INTERRUPTED
from laggard.core.text.terminal_output import print_text

if TYPE_CHECKING:
    from laggard.core.run_schema import RunRecord


def get_exit_status(record: RunRecord) -> int:
    """Return the exit status for the status of a run."""
    return {"done": 0, "unfaithful": 3, "interrupted": EXIT_INTERRUPTED}.get(record.status, 1)


def print_result(record: RunRecord, folder: Path, *, as_json: bool) -> None:
    """Print the result of a run as text or as JSON."""
    from laggard.run_folder.results import build_result_document, format_run_result

    if as_json:
        print_text(json.dumps(build_result_document(record, folder), indent=2))
    else:
        print_text(format_run_result(record, folder))
