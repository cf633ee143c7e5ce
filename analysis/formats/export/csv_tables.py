"""Export of a run's tables as CSV (docs/how_to/analyze_other_traces.md).

The columns have the names of the Parquet files; phases are written by name.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from laggard.analysis.formats.export.registry import ExportResult
from laggard.analysis.tables.load_run import RunData
from laggard.core.files.output_files import replace_file
from laggard.core.span_schema import Phase


def write_csv(run: RunData, folder: Path) -> tuple[Path, ...]:
    """Write `spans.csv`, `steps.csv`, `links.csv` and `hosts.csv`.

    Args:
        run: a loaded run.
        folder: folder to write to; it is created if needed, and files in it are replaced.

    Returns:
        The files. Values that were not recorded are empty.
    """
    import pandas as pd

    spans = run.spans.to_frame()
    spans["phase"] = np.array([phase.value for phase in Phase])[run.spans.phase]
    frames = {
        "spans": spans,
        "steps": run.steps.to_frame(),
        "links": run.links.to_frame(),
        "hosts": pd.DataFrame([vars(host) for host in run.hosts]),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        with replace_file(folder / f"{name}.csv") as file:
            frame.to_csv(file, index=False, lineterminator="\n", mode="wb")
    return tuple(folder / f"{name}.csv" for name in frames)


def export_csv(run: RunData, path: Path) -> ExportResult:
    """Write the CSV tables into a folder (see `write_csv`).

    Examples:
        >>> from laggard.analysis.tables.load_run import load_run
        >>> run = load_run(Path("runs/quickstart/latest"))
        >>> [path.name for path in export_csv(run, Path("tables")).paths]
        ['spans.csv', 'steps.csv', 'links.csv', 'hosts.csv']
    """
    return ExportResult(write_csv(run, path))
