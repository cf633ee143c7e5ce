"""An evaluation told: its score beside the goals, where the errors are, and the worst runs; as text
and as a document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from laggard.analysis.evaluate.scoring import Score, score
from laggard.analysis.evaluate.verdict import Verdict

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]

WORST = 10
AT_LEAST = {"f1": 0.95, "label_macro_f1": 0.95, "top1": 0.97, "link_top1": 0.9}
AT_MOST = {
    "false_alarms_per_1000_steps": 0.5,
    "cost_error_p50": 0.02,
    "cost_error_p90": 0.05,
    "undetectable_share": 0.2,
    "online_false_alarms_per_1000_steps": 0.5,
}
_TOLD = {
    "precision": "precision of events",
    "recall": "recall of events",
    "f1": "F1 of events",
    "label_macro_f1": "macro-F1 of family and kind",
    "top1": "rank top-1",
    "link_top1": "link top-1",
    "onset_delay_steps": "onset found late by (median steps)",
    "onset_error_steps_p90": "onset off by (p90, steps)",
    "false_alarms_per_1000_steps": "false alarms per 1,000 clean steps",
    "cost_error_p50": "cost off by (p50, of makespan)",
    "cost_error_p90": "cost off by (p90, of makespan)",
    "undetectable_share": "events no detector could see",
    "online_precision": "told meanwhile: precision",
    "online_recall": "told meanwhile: recall",
    "online_f1": "told meanwhile: F1",
    "online_delay_steps": "told late by (median steps)",
    "online_delay_steps_mean": "told late by (mean steps)",
    "online_delay_steps_p90": "told late by (p90, steps)",
    "online_false_alarms_per_1000_steps": "told for nothing in 1,000 clean steps",
}


@dataclass(frozen=True)
class Tried:
    """One run and what became of it.

    Attributes:
        name: what it was, in a line.
        axes: what kind of run it was, as axis and value, for the tables by axis.
        verdict: what was right and wrong.
    """

    name: str
    axes: Mapping[str, str]
    verdict: Verdict


def told_document(tried: Sequence[Tried]) -> dict[str, JsonValue]:
    """The score (`Score`), the goals, the score by axis and value, and the runs with most
    errors.
    """
    document: dict[str, JsonValue] = {**asdict(score([each.verdict for each in tried]))}
    document["goals"] = {**AT_LEAST, **AT_MOST}
    document["by"] = {
        axis: {value: {**asdict(part)} for value, part in parts.items()}
        for axis, parts in by_axis(tried).items()
    }
    document["worst"] = [
        {"case": each.name, "errors": each.verdict.errors, "cost_error": each.verdict.cost_error}
        for each in worst(tried)
    ]
    return document


def by_axis(tried: Sequence[Tried]) -> dict[str, dict[str, Score]]:
    """The score of the runs of every value of every axis; values in order, numbers by size."""
    groups: dict[str, dict[str, list[Verdict]]] = {}
    for each in tried:
        for axis, value in each.axes.items():
            groups.setdefault(axis, {}).setdefault(value, []).append(each.verdict)
    return {
        axis: {value: score(parts[value]) for value in sorted(parts, key=_place)}
        for axis, parts in groups.items()
    }


def _place(value: str) -> tuple[float, str]:
    try:
        return float(value), ""
    except ValueError:
        return 0.0, value


def worst(tried: Sequence[Tried]) -> tuple[Tried, ...]:
    """The runs with most errors, then those whose cost is farthest off; none that are right."""
    wrong = [each for each in tried if each.verdict.errors]
    return tuple(
        sorted(wrong, key=lambda each: (-each.verdict.errors, -(each.verdict.cost_error or 0.0)))[
            :WORST
        ]
    )


def told_text(tried: Sequence[Tried]) -> str:
    """The same for people."""
    whole = score([each.verdict for each in tried])
    lines = [
        (
            f"{whole.cases} runs, {whole.events} detectable events and {whole.undetectable} that no"
            " detector could see"
        ),
        "",
    ]
    values = asdict(whole)
    lines += [
        f"  {told:<38}{_number(values[key]):>8}{_goal(key, values[key])}"
        for key, told in _TOLD.items()
    ]
    for axis, parts in by_axis(tried).items():
        lines += [
            "",
            (
                f"  {axis:<22}{'runs':>6}{'events':>8}{'precision':>11}{'recall':>8}{'cost p50':>10}{'p90':>8}"
            ),
        ]
        lines += [_row(value, part) for value, part in parts.items()]
    for place, each in enumerate(worst(tried)):
        lines += ["", "  most errors"] if not place else []
        lines.append(f"  {each.verdict.errors:>4}  {each.name}")
    return "\n".join(lines)


def _row(value: str, part: Score) -> str:
    told = [
        _number(part.precision),
        _number(part.recall),
        _number(part.cost_error_p50),
        _number(part.cost_error_p90),
    ]
    return f"  {value:<22}{part.cases:>6}{part.events:>8}{told[0]:>11}{told[1]:>8}{told[2]:>10}{told[3]:>8}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _goal(key: str, value: float | None) -> str:
    if key in AT_LEAST:
        met, told = value is not None and value >= AT_LEAST[key], f"at least {AT_LEAST[key]:g}"
    elif key in AT_MOST:
        met, told = value is not None and value <= AT_MOST[key], f"at most {AT_MOST[key]:g}"
    else:
        return ""
    return f"   goal: {told}{'' if met or value is None else '  (missed)'}"
