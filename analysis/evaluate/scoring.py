"""Score of many runs: precision, recall and other measures, computed from their judgments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.evaluate.alarm_judgment import AlarmJudgment
from laggard.analysis.evaluate.finding_judgment import CaseJudgment


@dataclass(frozen=True)
class Score:
    """Quality of the analysis; a measure without any applicable case is None.

    Attributes:
        cases: number of judged runs.
        events: number of detectable events in them.
        precision: share of the findings that match an event.
        recall: share of the detectable events that were found.
        f1: harmonic mean of precision and recall.
        label_macro_f1: mean F1 of all labels (family and kind) that occur. An event found under
            another label is missed for its own label and a false positive for the other.
        top1: share of runs in which the most expensive finding with a rank names a slow rank,
            among runs with a detectable slow rank.
        link_top1: share of runs in which the most expensive finding of the network names a slow
            link, among runs with a detectable slow link.
        onset_delay_steps: median of found minus true first step of dynamic events.
        onset_error_steps_p90: 90th percentile of the absolute difference.
        false_alarms_per_1000_steps: findings in 1,000 steps of runs without injection.
        cost_error_p50: median error of the findings' total cost over runs with injection, as a
            share of the makespan.
        cost_error_p90: 90th percentile of this error.
        undetectable: number of events that no detector could find; they count nowhere else.
        undetectable_share: their share of all events.
        online_precision: share of the live alarms that match an event of the same label.
        online_recall: share of the detectable events with a live alarm.
        online_f1: harmonic mean of both.
        online_delay_steps: median number of steps from the first slow step of a dynamic event to
            its alarm.
        online_delay_steps_mean: mean of this delay.
        online_delay_steps_p90: 90th percentile of this delay.
        online_false_alarms_per_1000_steps: live alarms in 1,000 steps of runs without injection.
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
    """Compute the score of many runs from their judgments.

    Args:
        verdicts: judgment of each run.

    Returns:
        The score; every event has the same weight, and so has every finding.
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
    """Add up the alarm judgments of all runs in which the live detector was run."""
    reported = [v.online for v in verdicts if v.online is not None]
    return AlarmJudgment(
        found=sum(each.found for each in reported),
        missed=sum(each.missed for each in reported),
        false_positives=sum(each.false_positives for each in reported),
        delays=tuple(delay for each in reported for delay in each.delays),
    )


def _compute_label_macro_f1(verdicts: Sequence[CaseJudgment]) -> float | None:
    """Return the mean F1 over all labels that events have."""
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
