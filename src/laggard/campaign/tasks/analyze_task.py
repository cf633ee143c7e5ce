"""Task `analyze`: the stragglers of a run folder or a trace, found in memory."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field, JsonValue

from laggard.campaign.tasks.cell_task import CellTask
from laggard.core.errors import InputError

_RUN_FILES = ("run.json", "*.parquet", "scenario/*")
_MAX_FILES = 10_000


class AnalyzeTask(CellTask):
    """Run folder or trace, and another strategy or other numbers of workers.

    Attributes:
        path: run folder or trace, relative to the campaign file; in `vary` also a pattern.
        strategy: strategy whose duration for the same work is estimated, as in `workload.yaml`.
        workers: numbers of workers by tier for which the duration is estimated.
    """

    columns: ClassVar[tuple[str, ...]] = ("estimated_s", "estimated_speedup")

    path: str = Field(min_length=1)
    strategy: str | dict[str, JsonValue] | None = None
    workers: dict[str, int] | None = None

    @classmethod
    def expand_values(cls, key: str, values: Sequence[JsonValue], folder: Path) -> list[JsonValue]:
        """Return the values of an axis; a pattern of paths is every path that it matches."""
        if key != "path":
            return list(values)
        expanded: dict[str, None] = {}
        others: list[JsonValue] = []
        for value in values:
            if isinstance(value, str):
                expanded |= dict.fromkeys(_expand_pattern(value, folder))
            else:
                others.append(value)
        return [*expanded, *others]

    def list_inputs(self, folder: Path) -> Sequence[Path]:
        """Return the files of the run folder that are no results, or all files of the trace."""
        from laggard.analysis.formats.registry import RUN_FOLDER, detect_format

        self._parse_strategies()
        path = folder / self.path
        trace_format = detect_format(path)
        if path.is_file():
            return (path,)
        patterns = _RUN_FILES if trace_format is RUN_FOLDER else ("**/*",)
        files = sorted({each for p in patterns for each in path.glob(p) if each.is_file()})
        if len(files) > _MAX_FILES:
            raise InputError(
                f"{path}: more than {_MAX_FILES:,} files, and a campaign reads all of them to"
                " notice a change — give one trace a folder of its own"
            )
        return files

    def compute(self, folder: Path) -> Mapping[str, object]:
        """Analyze the run, and estimate its duration if a strategy or workers are given."""
        from laggard.run_folder.analyze import analyze_in_memory
        from laggard.run_folder.results import build_summary_document

        path = folder / self.path
        run, analysis = analyze_in_memory(path)
        columns = dict.fromkeys(self.columns) | self._estimate(path)
        # The status and the error of the record are those of the run, not of this analysis.
        return {
            **build_summary_document(run, analysis),
            "folder": str(path),
            "error": None,
            "columns": columns,
        }

    def _estimate(self, path: Path) -> dict[str, object]:
        from laggard.run_folder.strategy_estimates import estimate_strategies

        if self.strategy is None and self.workers is None:
            return {}
        workers = [f"{tier}={count}" for tier, count in (self.workers or {}).items()]
        document, _ = estimate_strategies(path, self._list_strategies(), workers)
        assert isinstance(document, dict)
        strategies, measured_s = document["strategies"], document["measured_s"]
        assert isinstance(strategies, list)
        estimate = strategies[0]
        assert isinstance(estimate, dict)
        estimated_s, speedup = estimate["makespan_s"], None
        if isinstance(estimated_s, float) and isinstance(measured_s, float) and estimated_s > 0:
            speedup = measured_s / estimated_s
        return {"estimated_s": estimated_s, "estimated_speedup": speedup}

    def _list_strategies(self) -> list[str]:
        # JSON is YAML, in which the parser expects a strategy.
        return [] if self.strategy is None else [json.dumps(self.strategy)]

    def _parse_strategies(self) -> None:
        from laggard.run_folder.strategy_estimates import parse_strategies, parse_workers

        parse_strategies(self._list_strategies())
        parse_workers([f"{tier}={count}" for tier, count in (self.workers or {}).items()])


def _expand_pattern(text: str, folder: Path) -> Iterator[str]:
    if not glob.has_magic(text):
        yield text
        return
    # `Path.glob` knows neither absolute patterns nor those that leave the folder.
    found = sorted(glob.glob(text, root_dir=folder, recursive=True))  # noqa: PTH207
    if not found:
        raise InputError(
            f"vary.path: {text}: no file or folder in {folder} matches — correct the pattern, which"
            " is relative to the campaign file"
        )
    yield from found
