"""Export of a run as a Parquet file with ByteDance's columns."""

from __future__ import annotations

from pathlib import Path

from laggard.analysis.formats.bytedance.from_run import run_to_operations
from laggard.analysis.formats.bytedance.parquet_file import write_operations
from laggard.analysis.formats.export.registry import ExportResult
from laggard.analysis.tables.load_run import RunData


def export_bytedance(run: RunData, path: Path) -> ExportResult:
    """Write the run's operations, and the metadata file beside them.

    Examples:
        >>> from laggard.analysis.tables.load_run import load_run
        >>> run = load_run(Path("runs/quickstart/latest"))
        >>> [path.name for path in export_bytedance(run, Path("job.parquet")).paths]
        ['job.parquet', 'meta-job.yaml']
    """
    meta = write_operations(run_to_operations(run), path)
    gaps = (
        "the format has no operation for fetching, preparing and copying samples, checkpoints and"
        " evaluation: these times are gaps between operations"
    )
    return ExportResult((path, meta), (gaps,))
