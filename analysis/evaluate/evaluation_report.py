"""Report of an evaluation, as text and as a document: scores, goals, breakdowns and worst runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from laggard.analysis.evaluate.finding_judgment import CaseJudgment
from laggard.analysis.evaluate.scoring import Score, compute_score

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]

MAX_WORST_CASES = 10
# Goals of the evaluation: least and greatest values of the score.
MIN_GOALS = {"f1": 0.95, "label_macro_f1": 0.95, "top1": 0.97, "link_top1": 0.9}
MAX_GOALS = {
    "false_alarms_per_1000_steps": 0.5,
    "cost_error_p50": 0.02,
    "cost_error_p90": 0.05,
    "undetectable_share": 0.2,
    "online_false_alarms_per_1000_steps": 0.5,
}
_SCORE_LABELS = {
    "precision": "precision of events",
    "recall": "recall of events",
    "f1": "F1 of events",
    "label_macro_f1": "macro-F1 of family and kind",
    "top1": "rank top-1",
    "link_top1": "link top-1",
    "onset_delay_steps": "onset delay (median, steps)",
    "onset_error_steps_p90": "onset error (p90, steps)",
    "false_alarms_per_1000_steps": "false alarms per 1,000 clean steps",
    "cost_error_p50": "cost error (p50, share of makespan)",
    "cost_error_p90": "cost error (p90, share of makespan)",
    "undetectable_share": "undetectable events (share)",
    "online_precision": "live alarms: precision",
    "online_recall": "live alarms: recall",
    "online_f1": "live alarms: F1",
    "online_delay_steps": "live alarms: delay (median, steps)",
    "online_delay_steps_mean": "live alarms: delay (mean, steps)",
    "online_delay_steps_p90": "live alarms: delay (p90, steps)",
    "online_false_alarms_per_1000_steps": "false live alarms, 1,000 clean steps",
}


@dataclass(frozen=True)
class EvaluatedCase:
    """One run and its judgment.

    Attributes:
        name: description of the run in one line.
        axes: properties of the run, from axis to value, for the tables by axis.
        verdict: judgment of the run.
    """

    name: str
    axes: Mapping[str, str]
    verdict: CaseJudgment


def build_document(evaluated: Sequence[EvaluatedCase]) -> dict[str, JsonValue]:
    """Return the evaluation as a JSON document.

    It has the score (`Score`), the goals, the score by axis and value, and the runs with the most
    errors.
    """
    document: dict[str, JsonValue] = {**asdict(compute_score([each.verdict for each in evaluated]))}
    document["goals"] = {**MIN_GOALS, **MAX_GOALS}
    document["by"] = {
        axis: {value: {**asdict(part)} for value, part in parts.items()}
        for axis, parts in score_by_axis(evaluated).items()
    }
    document["worst"] = [
        {"case": each.name, "errors": each.verdict.errors, "cost_error": each.verdict.cost_error}
        for each in select_worst(evaluated)
    ]
    return document


def score_by_axis(evaluated: Sequence[EvaluatedCase]) -> dict[str, dict[str, Score]]:
    """Return the score of the runs with each value of each axis.

    Values are sorted, numbers by size.
    """
    groups: dict[str, dict[str, list[CaseJudgment]]] = {}
    for each in evaluated:
        for axis, value in each.axes.items():
            groups.setdefault(axis, {}).setdefault(value, []).append(each.verdict)
    return {
        axis: {value: compute_score(parts[value]) for value in sorted(parts, key=_make_sort_key)}
        for axis, parts in groups.items()
    }


def _make_sort_key(value: str) -> tuple[float, str]:
    """Return a key that sorts numbers by size and other values by name."""
    try:
        return float(value), ""
    except ValueError:
        return 0.0, value


def select_worst(evaluated: Sequence[EvaluatedCase]) -> tuple[EvaluatedCase, ...]:
    """Return the runs with the most errors, then with the greatest cost error.

    Runs without errors are not included.
    """
    wrong = [each for each in evaluated if each.verdict.errors]
    return tuple(
        sorted(wrong, key=lambda each: (-each.verdict.errors, -(each.verdict.cost_error or 0.0)))[
            :MAX_WORST_CASES
        ]
    )


def format_evaluation(evaluated: Sequence[EvaluatedCase]) -> str:
    """Return the evaluation as text."""
    whole = compute_score([each.verdict for each in evaluated])
    lines = [
        (
            f"{whole.cases} runs, {whole.events} detectable events, {whole.undetectable}"
            " undetectable events"
        ),
        "",
    ]
    values = asdict(whole)
    lines += [
        f"  {label:<38}{_format_number(values[key]):>8}{_format_goal(key, values[key])}"
        for key, label in _SCORE_LABELS.items()
    ]
    for axis, parts in score_by_axis(evaluated).items():
        lines += [
            "",
            (
                f"  {axis:<22}{'runs':>6}{'events':>8}{'precision':>11}"
                f"{'recall':>8}{'cost p50':>10}{'p90':>8}"
            ),
        ]
        lines += [_format_row(value, part) for value, part in parts.items()]
    for place, each in enumerate(select_worst(evaluated)):
        lines += ["", "  runs with the most errors"] if not place else []
        lines.append(f"  {each.verdict.errors:>4}  {each.name}")
    return "\n".join(lines)


def _format_row(value: str, part: Score) -> str:
    label = [
        _format_number(part.precision),
        _format_number(part.recall),
        _format_number(part.cost_error_p50),
        _format_number(part.cost_error_p90),
    ]
    return (
        f"  {value:<22}{part.cases:>6}{part.events:>8}"
        f"{label[0]:>11}{label[1]:>8}{label[2]:>10}{label[3]:>8}"
    )


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _format_goal(key: str, value: float | None) -> str:
    if key in MIN_GOALS:
        met, label = value is not None and value >= MIN_GOALS[key], f"at least {MIN_GOALS[key]:g}"
    elif key in MAX_GOALS:
        met, label = value is not None and value <= MAX_GOALS[key], f"at most {MAX_GOALS[key]:g}"
    else:
        return ""
    return f"   goal: {label}{'' if met or value is None else '  (missed)'}"
