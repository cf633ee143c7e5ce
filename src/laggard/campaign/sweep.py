"""Campaign: one scenario run with every combination of some values, several times, resumable.

The file lists the varied values. execo's `ParamSweeper` stores the finished runs on disk.
Therefore a campaign that was interrupted continues where it stopped when it is started again. Runs
that failed or were unfaithful are repeated too.

    scenario: quickstart            # folder, relative to this file
    repeats: 5                      # runs of each combination
    vary:                           # any key of any scenario file, as for --set, and any value
      workload.batch_size: [64, 128]
      workload.strategy: [allreduce, {name: local_sgd, steps: 8}]
"""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from laggard.campaign.run_subprocess import run_in_subprocess
from laggard.core.errors import InputError
from laggard.core.yaml_source import parse_yaml, validate_model
from laggard.run_folder.fidelity_checks import FidelityPolicy

log = logging.getLogger(__name__)

SweepValue = None | bool | int | float | str
RESULT_COLUMNS = (
    "run",
    "status",
    "makespan_s",
    "steps",
    "accuracy",
    "samples_per_s",
    "cost",
    "fairness",
    "stragglers",
    "folder",
)


class CampaignFile(BaseModel):
    """Content of a campaign file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scenario: Path
    repeats: int = Field(default=1, ge=1, le=10_000)
    vary: dict[str, list[JsonValue]] = Field(default_factory=dict)


@dataclass(frozen=True)
class Combination:
    """Combination of varied values, and the number of the repeat."""

    values: Mapping[str, JsonValue]
    repeat: int

    def overrides(self) -> tuple[str, ...]:
        """Return the `--set` arguments of this run."""
        return tuple(f"{key}={json.dumps(value)}" for key, value in sorted(self.values.items()))


def load_campaign(path: Path) -> CampaignFile:
    """Read a campaign file.

    Raises:
        InputError: the file is missing or is not a campaign
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror} — give the path of a campaign file"
        ) from error
    campaign = validate_model(parse_yaml(data, str(path)), CampaignFile)
    return campaign.model_copy(update={"scenario": (path.parent / campaign.scenario).resolve()})


def run_campaign(
    path: Path,
    runs: Path,
    on_result: Callable[[Combination, Mapping[str, object]], None],
    fidelity: FidelityPolicy = "require",
) -> tuple[Path, int]:
    """Make the missing runs of a campaign.

    Args:
        path: campaign file
        runs: folder of the run folders; the campaign's state and table are in its subfolder
            `campaigns/<name>`
        on_result: function to call after each run with its combination and its row
        fidelity: reaction to a failed fidelity check before training, in every run

    Returns:
        The results table (CSV, one row per run so far) and the number of runs of this call that
        are not done.

    Raises:
        KeyboardInterrupt: a signal ended the campaign and its current run
    """
    from execo_engine import ParamSweeper

    campaign = load_campaign(path)
    folder = runs / "campaigns" / path.stem
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "results.csv"
    sweeper = ParamSweeper(str(folder / "state"), sweeps=_list_points(campaign), save_sweeps=True)
    # Repeat the combinations that were running when the campaign was killed. `reset` would lose
    # them.
    sweeper.cancel_batch(sweeper.get_inprogress())
    failed = 0
    for point in iter(sweeper.get_next, None):
        combination = _find_combination(campaign, point)
        row = _run_combination(campaign, combination, runs, fidelity)
        _append_row(table, combination, row)
        if row["status"] == "done":
            sweeper.done(point)
        else:
            failed += 1
            sweeper.skip(point)  # repeated when the campaign is started again
        on_result(combination, row)
    return table, failed


def format_combination(combination: Combination, row: Mapping[str, object]) -> str:
    """Format one run of a campaign as a line."""
    parts = [*combination.overrides(), f"repeat {combination.repeat}", str(row["status"])]
    parts += [
        f"{name} {row[name]}"
        for name in ("makespan_s", "accuracy", "stragglers")
        if row.get(name) is not None
    ]
    return " · ".join([*parts, str(row.get("folder", ""))])


def _list_points(campaign: CampaignFile) -> list[dict[str, SweepValue]]:
    from execo_engine import sweep

    sweep_values = {
        key: [_to_sweep_value(value) for value in values] for key, values in campaign.vary.items()
    }
    return list(sweep({**sweep_values, "repeat": list(range(campaign.repeats))}))


def _find_combination(campaign: CampaignFile, point: Mapping[str, SweepValue]) -> Combination:
    values = {
        # The sweeper stores lists and mappings as text; find the original value.
        key: next(v for v in listed if _to_sweep_value(v) == point[key])
        for key, listed in campaign.vary.items()
    }
    return Combination(values, int(str(point["repeat"])))


def _to_sweep_value(value: JsonValue) -> SweepValue:
    """Convert a value for the sweeper and the table, which do not support lists and mappings."""
    return json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else value


def _run_combination(
    campaign: CampaignFile, combination: Combination, runs: Path, fidelity: FidelityPolicy
) -> dict[str, object]:
    ended = run_in_subprocess(campaign.scenario, combination.overrides(), runs, fidelity=fidelity)
    if ended.result is None:
        log.warning("a run exited with status %d and no result", ended.status)
        return {"status": "failed"}
    return _build_row(ended.result)


def _build_row(answer: Mapping[str, object]) -> dict[str, object]:
    outcome = answer.get("outcome")
    findings = answer.get("stragglers")
    row: dict[str, object] = {
        "run": answer.get("id"),
        "status": answer.get("status"),
        "folder": answer.get("folder"),
    }
    if isinstance(outcome, dict):
        row |= {key: outcome.get(key) for key in RESULT_COLUMNS if key in outcome}
    if isinstance(findings, list):
        row["stragglers"] = len(
            [f for f in findings if isinstance(f, dict) and not f.get("masked")]
        )
    return row


def _append_row(table: Path, combination: Combination, row: Mapping[str, object]) -> None:
    keys = sorted(combination.values)
    # A resumed campaign appends to its table.
    is_new = not table.exists()
    with table.open("a", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow([*keys, "repeat", *RESULT_COLUMNS])
        values = [_to_sweep_value(combination.values[key]) for key in keys]
        writer.writerow([*values, combination.repeat, *(row.get(c) for c in RESULT_COLUMNS)])
