"""Task `evaluate`: generated runs with known stragglers, analyzed and judged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, JsonValue, model_validator

from laggard import __version__
from laggard.campaign.tasks.cell_task import CellTask
from laggard.core.errors import InputError

if TYPE_CHECKING:
    from laggard.analysis.evaluate.case_grid import EvaluationCase
    from laggard.analysis.evaluate.finding_judgment import CaseJudgment
    from laggard.analysis.evaluate.trace_grid import TraceCase

GridName = Literal["runs", "traces"]
_RANGE = re.compile(r"(\d{1,6})-(\d{1,6})", re.ASCII)
_MAX_RANGE = 20_000


class EvaluateTask(CellTask):
    """Cases of a grid, as `laggard evaluate` scores them.

    Attributes:
        grid: grid of runs of Laggard, or of traces as other tools record them.
        seed: seed of the grid.
        case: position of one case in the grid.
        cases: number of cases from the beginning of the grid, instead of `case`.
    """

    columns: ClassVar[tuple[str, ...]] = (
        "judged_cases",
        "true_positives",
        "false_positives",
        "missed",
        "undetectable",
        "precision",
        "recall",
        "f1",
        "ranks_named",
        "ranks_asked",
        "links_named",
        "links_asked",
        "clean_steps",
        "clean_false_positives",
        "cost_error",
        "alarms_true",
        "alarms_false",
        "alarms_missed",
    )

    grid: GridName = "runs"
    seed: int = Field(default=1, ge=0)
    case: int | None = Field(default=None, ge=0)
    cases: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _require_cases(self) -> Self:
        if (self.case is None) == (self.cases is None):
            raise ValueError("a cell has either `case` or `cases` — vary one of them")
        count = len(build_grid(self.grid, 1))
        for name, value in (("case", self.case), ("cases", self.cases)):
            if value is not None and value > count - (name == "case"):
                raise ValueError(
                    f"{name} {value} is beyond the grid `{self.grid}`, which has {count:,} cases"
                    f" — write {count - (name == 'case')} or less"
                )
        return self

    @classmethod
    def expand_values(
        cls,
        key: str,
        values: Sequence[JsonValue],
        folder: Path,  # noqa: ARG003
    ) -> list[JsonValue]:
        """Return the values of an axis; a range of cases, such as `0-199`, is every one of it."""
        if key != "case":
            return list(values)
        expanded: list[JsonValue] = []
        for value in values:
            expanded += _expand_range(value) if isinstance(value, str) else [value]
        return expanded

    def get_seed(self) -> int | None:
        """Return the seed of the grid."""
        return self.seed

    def compute(self, folder: Path) -> Mapping[str, object]:
        """Evaluate the cases, one after the other."""
        del folder
        grid = build_grid(self.grid, self.seed)
        chosen = grid[: self.cases] if self.case is None else (grid[self.case],)
        verdicts = [_evaluate(case) for case in chosen]
        return {
            "columns": summarize_judgments(verdicts),
            "answer": [chosen[0].name if len(chosen) == 1 else f"{len(chosen)} cases"],
            "versions": {"laggard": __version__},
        }


@cache
def build_grid(grid: GridName, seed: int) -> Sequence[EvaluationCase | TraceCase]:
    """Return all cases of a grid."""
    from laggard.analysis.evaluate.case_grid import build_full_grid
    from laggard.analysis.evaluate.trace_grid import build_trace_grid

    return build_full_grid(seed) if grid == "runs" else build_trace_grid(seed)


def summarize_judgments(verdicts: Sequence[CaseJudgment]) -> dict[str, float | None]:
    """Return counts that add up over cells, and the scores of these cases alone.

    `cost_error` is the median, so that of a cell with one case is that case's own.
    """
    from laggard.analysis.evaluate.scoring import compute_score

    score = compute_score(verdicts)
    clean = [each for each in verdicts if each.clean_steps]
    ranks = [each.rank_named for each in verdicts if each.rank_named is not None]
    links = [each.link_named for each in verdicts if each.link_named is not None]
    live = [each.online for each in verdicts if each.online is not None]
    return {
        "judged_cases": score.cases,
        "true_positives": _count(each.found for each in verdicts),
        "false_positives": _count(each.false_positives for each in verdicts),
        "missed": _count(each.missed for each in verdicts),
        "undetectable": score.undetectable,
        "precision": score.precision,
        "recall": score.recall,
        "f1": score.f1,
        "ranks_named": sum(ranks),
        "ranks_asked": len(ranks),
        "links_named": sum(links),
        "links_asked": len(links),
        "clean_steps": sum(each.clean_steps for each in clean),
        "clean_false_positives": _count(each.false_positives for each in clean),
        "cost_error": score.cost_error_p50,
        "alarms_true": sum(each.found for each in live),
        "alarms_false": sum(each.false_positives for each in live),
        "alarms_missed": sum(each.missed for each in live),
    }


def _evaluate(case: EvaluationCase | TraceCase) -> CaseJudgment:
    from laggard.analysis.evaluate.case_evaluation import evaluate_case
    from laggard.analysis.evaluate.case_grid import EvaluationCase
    from laggard.analysis.evaluate.trace_grid import evaluate_trace

    return evaluate_case(case) if isinstance(case, EvaluationCase) else evaluate_trace(case)


def _expand_range(text: str) -> list[JsonValue]:
    found = _RANGE.fullmatch(text)
    first, last = (int(found[1]), int(found[2])) if found else (1, 0)
    if not 0 <= last - first < _MAX_RANGE:
        raise InputError(
            f"vary.case: {text}: not a range of at most {_MAX_RANGE:,} cases — write the first and"
            " the last one, such as 0-199"
        )
    return list(range(first, last + 1))


def _count(parts: Iterable[Sequence[object]]) -> int:
    return sum(map(len, parts))
