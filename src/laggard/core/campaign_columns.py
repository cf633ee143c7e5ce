"""Columns of a campaign's results table. They never move.

A table has these columns in this order, and then one for each varied key in the order in which the
campaign first had it.
"""

from __future__ import annotations

CELL_COLUMNS = ("cell", "setup", "current", "scenario", "variant", "repeat", "seed", "attempt")
RUN_COLUMNS = ("status", "reason", "run", "folder", "started", "elapsed_s")
OUTCOME_COLUMNS = (
    "makespan_s",
    "steps",
    "accuracy",
    "loss",
    "samples_per_s",
    "bytes_sent",
    "cost",
    "fairness",
    "stopped_by",
)
ANALYSIS_COLUMNS = (
    "compute_s",
    "communication_s",
    "wait_s",
    "fetch_s",
    "other_s",
    "stragglers",
    "lost_s",
    "lost_share",
    "answer",
)
SETTING_COLUMNS = ("checks", "failed_checks", "dilation", "links", "versions_laggard", "git")
FIXED_COLUMNS = (
    *CELL_COLUMNS,
    *RUN_COLUMNS,
    *OUTCOME_COLUMNS,
    *ANALYSIS_COLUMNS,
    *SETTING_COLUMNS,
)
"""Columns that are no varied keys."""

TASK_COLUMNS = (
    *("estimated_s", "estimated_speedup"),
    *("judged_cases", "true_positives", "false_positives", "missed", "undetectable"),
    *("precision", "recall", "f1", "ranks_named", "ranks_asked", "links_named", "links_asked"),
    *("clean_steps", "clean_false_positives", "cost_error"),
    *("alarms_true", "alarms_false", "alarms_missed"),
    *("worker_count", "step_s", "step_s_low", "step_s_high", "limited_by"),
    *("efficiency", "relative_error"),
)
"""Columns that only cells without a continuum have."""

FEDERATED_COLUMNS = ("jain_index", "worst_accuracy")
"""Columns that only federated trainings have."""

OPTIONAL_COLUMNS = (*TASK_COLUMNS, "forgetting", *FEDERATED_COLUMNS, "bytes_across_tiers")
"""Columns that stand between the fixed and the varied if a cell has them."""
