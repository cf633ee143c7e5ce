"""Campaign: one scenario run with every combination of some values, several times, resumable.

The file lists the varied values. An SQLite file beside the table of results stores all runs, so
that a campaign continues where it ended (`campaign_state.py`).
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
import io
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from laggard.campaign.campaign_state import CampaignState, open_campaign
from laggard.campaign.run_subprocess import run_in_subprocess
from laggard.core.corrections.model_problems import validate_model
from laggard.core.files.input_files import read_bounded
from laggard.core.files.output_files import make_folder, write_text
from laggard.core.yaml_source import MAX_BYTES, parse_yaml
from laggard.run_folder.fidelity_checks import FidelityPolicy

log = logging.getLogger(__name__)

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
    """Content of a campaign file.

    Attributes:
        scenario: folder of the scenario, relative to the file.
        artifacts: folder with the files of the scenario's plays, relative to the file.
        app_conf: set of variables in `workflow_env.yaml` for the plays.
        duration: time between launch and finalize, if the scenario trains nothing.
        repeats: runs of each combination.
        vary: values of keys of the scenario files.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    scenario: Path
    artifacts: Path | None = None
    app_conf: str | None = None
    duration: str | None = Field(default=None, alias="for")
    repeats: int = Field(default=1, ge=1, le=10_000)
    vary: dict[str, list[JsonValue]] = Field(default_factory=dict)


@dataclass(frozen=True)
class Combination:
    """Combination of varied values, and the number of the repeat."""

    values: Mapping[str, JsonValue]
    repeat: int

    def overrides(self) -> tuple[str, ...]:
        """Return the `--set` arguments of this run."""
        return tuple(f"{key}={_to_yaml(value)}" for key, value in sorted(self.values.items()))

    def key(self) -> str:
        """Return the text that identifies this combination in the state of a campaign."""
        return json.dumps({**self.values, "repeat": self.repeat}, sort_keys=True)


def _to_yaml(value: JsonValue) -> str:
    """Return a value as JSON that YAML 1.1 reads too, which needs a point in 1e-05."""
    if isinstance(value, list):
        return f"[{', '.join(map(_to_yaml, value))}]"
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)}: {_to_yaml(each)}" for key, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    text = json.dumps(value)
    if isinstance(value, float) and "." not in text:
        return text.replace("e", ".0e")
    return text


def load_campaign(path: Path) -> CampaignFile:
    """Read a campaign file.

    Raises:
        InputError: the file is missing or is not a campaign
    """
    data = read_bounded(path, MAX_BYTES)
    campaign = validate_model(parse_yaml(data, str(path)), CampaignFile)
    artifacts = campaign.artifacts and (path.parent / campaign.artifacts).resolve()
    scenario = (path.parent / campaign.scenario).resolve()
    return campaign.model_copy(update={"scenario": scenario, "artifacts": artifacts})


def run_campaign(
    path: Path,
    runs: Path,
    on_result: Callable[[Combination, Mapping[str, object]], None],
    fidelity: FidelityPolicy = "require",
    artifacts: Path | None = None,
) -> tuple[Path, int]:
    """Make the missing runs of a campaign.

    Args:
        path: campaign file
        runs: folder of the run folders; the campaign's state and table are in its subfolder
            `campaigns/<name>`
        on_result: function to call after each run with its combination and its row
        fidelity: reaction to a failed fidelity check before training, in every run
        artifacts: folder with the files of the plays, instead of that of the campaign file

    Returns:
        The results table (CSV, one row per run so far) and the number of runs of this call that
        are not done.

    Raises:
        InputError: the campaign is already running, or its state is damaged
        KeyboardInterrupt: a signal ended the campaign and its current run
    """
    campaign = load_campaign(path)
    if artifacts is not None:
        campaign = campaign.model_copy(update={"artifacts": artifacts.absolute()})
    folder = make_folder(runs, "campaigns", path.stem)
    failed = 0
    table = folder / "results.csv"
    with open_campaign(folder) as state:
        done = state.list_done()
        # The state changes only when a run has ended, so an interrupted run is repeated. A failed
        # one is repeated when the campaign is started again.
        for combination in list_combinations(campaign):
            if combination.key() in done:
                continue
            row = _run_combination(campaign, combination, runs, fidelity)
            state.add_run(combination.key(), row)
            _write_table(table, state)
            failed += row["status"] != "done"
            on_result(combination, row)
        _write_table(table, state)
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


def list_combinations(campaign: CampaignFile) -> Iterator[Combination]:
    """Yield every combination once, in the order of the file; the repeats of one are adjacent."""
    seen: set[str] = set()
    for values in itertools.product(*campaign.vary.values()):
        named = dict(zip(campaign.vary, values, strict=True))
        for repeat in range(campaign.repeats):
            combination = Combination(named, repeat)
            if combination.key() not in seen:
                seen.add(combination.key())
                yield combination


def _run_combination(
    campaign: CampaignFile, combination: Combination, runs: Path, fidelity: FidelityPolicy
) -> dict[str, object]:
    command = ["run"]
    for option, value in (
        ("--artifacts", campaign.artifacts),
        ("--app-conf", campaign.app_conf),
        ("--for", campaign.duration),
    ):
        command += [] if value is None else [f"{option}={value}"]
    ended = run_in_subprocess(
        campaign.scenario, combination.overrides(), runs, command=command, fidelity=fidelity
    )
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


def _write_table(table: Path, state: CampaignState) -> None:
    """Write the results of all runs so far; an earlier version of the campaign had other keys."""
    runs = [(json.loads(key), row) for key, row in state.list_runs()]
    keys = sorted({name for values, _ in runs for name in values} - {"repeat"})
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*keys, "repeat", *RESULT_COLUMNS])
    for values, row in runs:
        varied = [_to_cell(values.get(key)) for key in keys]
        writer.writerow([*varied, values["repeat"], *(row.get(name) for name in RESULT_COLUMNS)])
    write_text(table, text.getvalue())


def _to_cell(value: JsonValue) -> JsonValue:
    return json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else value
