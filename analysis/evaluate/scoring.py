"""The score of many runs: precision, recall and the rest, from the verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.evaluate.alarm_judgment import AlarmJudgment
from laggard.analysis.evaluate.finding_judgment import CaseJudgment


@dataclass(frozen=True)
class Score:
    """How good the analysis is; what there was no case of is None.

    Attributes:
        cases: runs judged.
        events: detectable events in them.
        precision: findings that are events, of all findings.
        recall: events that were found, of all detectable ones.
        f1: harmonic mean of both.
        label_macro_f1: F1 of each class (family and kind) that occurs, where an event called by
            another class's name is missed in the one and false in the other; their mean.
        top1: runs in which the dearest finding with a rank names a slow one, of those with a
            detectable slow rank.
        link_top1: runs in which the dearest finding of the network names a slow link, of those with
            one that is detectable.
        onset_delay_steps: median of found minus true first step of dynamic events.
        onset_error_steps_p90: nine of ten are off by no more.
        false_alarms_per_1000_steps: findings in 1,000 steps of runs without injection.
        cost_error_p50: median, over runs with injection, of what the findings' cost is off by, as a
            share of the makespan.
        cost_error_p90: nine of ten are off by no more.
        undetectable: events that no detector could see, which count nowhere else.
        undetectable_share: of all events.
        online_precision: of what the detector told while the runs went on, what was so, class
            included.
        online_recall: detectable events that it told of.
        online_f1: harmonic mean of both.
        online_delay_steps: median of the steps that passed from the first slow one of a dynamic
            event to its alarm.
        online_delay_steps_mean: their mean.
        online_delay_steps_p90: nine of ten alarms came no later.
        online_false_alarms_per_1000_steps: alarms in 1,000 steps of runs without injection.
    """

    cases: int
    events: int
    precision: float | None
    recall: float | None
    f1: float | None
    label_macro_f1: float | None
    top1: float | None
    link_top1: float | None
    onset_delay_steps: float | None
    onset_error_steps_p90: float | None
    false_alarms_per_1000_steps: float | None
    cost_error_p50: float | None
    cost_error_p90: float | None
    undetectable: int
    undetectable_share: float | None
    online_precision: float | None = None
    online_recall: float | None = None
    online_f1: float | None = None
    online_delay_steps: float | None = None
    online_delay_steps_mean: float | None = None
    online_delay_steps_p90: float | None = None
    online_false_alarms_per_1000_steps: float | None = None


def compute_score(verdicts: Sequence[CaseJudgment]) -> Score:
    """Adds up the verdicts of runs.

    Args:
        verdicts: of each run.

    Returns:
        Their score: every event counts alike, and so does every finding.
    """
    found = sum(len(v.found) for v in verdicts)
    missed = sum(len(v.missed) for v in verdicts)
    false = sum(len(v.false_positives) for v in verdicts)
    undetectable = sum(v.undetectable for v in verdicts)
    clean = [v for v in verdicts if v.clean_steps]
    delays = [delay for v in verdicts for delay in v.onset_delays]
    errors = [v.cost_error for v in verdicts if v.cost_error is not None]
    alarms = _divide_or_none(
        1000 * sum(len(v.false_positives) for v in clean), sum(v.clean_steps for v in clean)
    )
    online = _sum_alarm_judgments(verdicts)
    online_false = sum(v.online.false_positives for v in clean if v.online is not None)
    online_clean = sum(v.clean_steps for v in clean if v.online is not None)
    return Score(
        cases=len(verdicts),
        events=found + missed,
        precision=_divide_or_none(found, found + false),
        recall=_divide_or_none(found, found + missed),
        f1=_compute_f1(found, false, missed),
        label_macro_f1=_compute_label_macro_f1(verdicts),
        top1=_compute_mean([v.rank_named for v in verdicts if v.rank_named is not None]),
        link_top1=_compute_mean([v.link_named for v in verdicts if v.link_named is not None]),
        onset_delay_steps=_compute_quantile(delays, 0.5),
        onset_error_steps_p90=_compute_quantile([abs(delay) for delay in delays], 0.9),
        false_alarms_per_1000_steps=alarms,
        cost_error_p50=_compute_quantile(errors, 0.5),
        cost_error_p90=_compute_quantile(errors, 0.9),
        undetectable=undetectable,
        undetectable_share=_divide_or_none(undetectable, found + missed + undetectable),
        online_precision=_divide_or_none(online.found, online.found + online.false_positives),
        online_recall=_divide_or_none(online.found, online.found + online.missed),
        online_f1=_compute_f1(online.found, online.false_positives, online.missed),
        online_delay_steps=_compute_quantile(online.delays, 0.5),
        online_delay_steps_mean=_compute_mean(online.delays),
        online_delay_steps_p90=_compute_quantile(online.delays, 0.9),
        online_false_alarms_per_1000_steps=_divide_or_none(1000 * online_false, online_clean),
    )


def _sum_alarm_judgments(verdicts: Sequence[CaseJudgment]) -> AlarmJudgment:
    """Of all runs that the detector was asked of, together."""
    reported = [v.online for v in verdicts if v.online is not None]
    return AlarmJudgment(
        found=sum(each.found for each in reported),
        missed=sum(each.missed for each in reported),
        false_positives=sum(each.false_positives for each in reported),
        delays=tuple(delay for each in reported for delay in each.delays),
    )


def _compute_label_macro_f1(verdicts: Sequence[CaseJudgment]) -> float | None:
    right = [true for v in verdicts for true, reported in v.found if true == reported]
    false = [reported for v in verdicts for true, reported in v.found if true != reported]
    missed = [true for v in verdicts for true, reported in v.found if true != reported]
    false += [label for v in verdicts for label in v.false_positives]
    missed += [label for v in verdicts for label in v.missed]
    labels = sorted({*right, *missed})
    each = [
        _compute_f1(right.count(label), false.count(label), missed.count(label)) for label in labels
    ]
    return _compute_mean([value for value in each if value is not None])


def _compute_f1(found: int, false: int, missed: int) -> float | None:
    return _divide_or_none(2 * found, 2 * found + false + missed)


def _divide_or_none(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _compute_mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _compute_quantile(values: Sequence[float], part: float) -> float | None:
    return float(np.quantile(values, part)) if values else None
