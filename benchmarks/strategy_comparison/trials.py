"""Trials of a comparison: every strategy on every column (a continuum) with every seed.

Each is compared with a baseline of the same column and seed. `columns.yaml` and `contenders.yaml`
in `experiments/strategies` list the columns and strategies. Each result is appended to a table
when its run ends, so that an interrupted comparison continues where it stopped.

A block is one column with one seed. The baseline runs first, because other runs are stopped after
`CUT_FACTOR` times its duration. The other strategies follow in random order. All columns of one
seed run before the next seed begins, so that slow changes of the machine affect all columns alike.
"""

from __future__ import annotations

import csv
import json
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from laggard.campaign.run_subprocess import run_in_subprocess
from laggard.core.corrections.model_problems import validate_model
from laggard.core.errors import InputError
from laggard.core.yaml_source import parse_yaml
from laggard.network_emulation.model import Heterogeneity, RandomHostEvent, RandomLinkEvent
from laggard.workloads.strategies.registry import list_whole_model_strategies

log = logging.getLogger(__name__)

CUT_FACTOR = 3.0
"""A run is stopped after this many times the duration of its block's baseline."""

BASELINE_LIMIT_S = 300.0
_RUN_OVERHEAD_S = 240.0
"""Real seconds that a run may take beside its training before it is killed. Evaluations count as
training.
"""

_FILE = TypeVar("_FILE", bound=BaseModel)


class _StrictModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Column(_StrictModel):
    """Continuum: a scenario folder (relative to the file), and values to set, as by `--set`."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    scenario: Path
    settings: dict[str, JsonValue] = Field(alias="set", default_factory=dict)


class Contender(_StrictModel):
    """Strategy with its parameters; a name alone is the strategy of that name with its defaults."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    strategy: str | dict[str, JsonValue] | None = None
    settings: dict[str, JsonValue] = Field(
        alias="set", default_factory=dict, description="further values to set"
    )
    columns: dict[str, dict[str, JsonValue]] = Field(
        default_factory=dict, description="values to set on single columns"
    )

    def overrides(self, column: str) -> Mapping[str, JsonValue]:
        """Return the values to set on a column."""
        strategy = self.name if self.strategy is None else self.strategy
        return {"workload.strategy": strategy, **self.settings, **self.columns.get(column, {})}


class Columns(_StrictModel):
    """Content of `columns.yaml`."""

    columns: tuple[Column, ...] = Field(min_length=1)


class Contenders(_StrictModel):
    """Content of `contenders.yaml`."""

    contenders: tuple[Contender, ...]


@dataclass(frozen=True)
class Trial:
    """One run of a comparison."""

    column: Column
    contender: Contender
    seed: int

    @property
    def key(self) -> tuple[str, str, int]:
        """Key of the trial in a table: column, strategy and seed."""
        return self.column.name, self.contender.name, self.seed


@dataclass(frozen=True)
class Result:
    """Result of one run: a row of the table.

    Attributes:
        stopped_by: `accuracy`, or the reason for the cut.
        limit_s: virtual seconds after which the run is cut.
        slips: number of fidelity violations.
        step_cpu_s: CPU time of a worker's step at full speed, in seconds.
    """

    column: str
    strategy: str
    seed: int
    status: str
    stopped_by: str = ""
    makespan_s: float = 0.0
    limit_s: float = 0.0
    steps: int = 0
    accuracy: float = 0.0
    bytes_sent: int = 0
    cost: float = 0.0
    fairness: float = 0.0
    slips: int = 0
    step_cpu_s: float = 0.0
    folder: str = ""
    error: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """Key of its trial."""
        return self.column, self.strategy, self.seed

    @property
    def is_cut(self) -> bool:
        """True if the run ended before it reached the accuracy."""
        return self.stopped_by != "accuracy"

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> Self:
        """Parse a row of the table."""
        return cls(**{field.name: _READ[str(field.type)](row[field.name]) for field in fields(cls)})  # type: ignore[arg-type]


_READ: Mapping[str, type[str | int | float]] = {"str": str, "int": int, "float": float}
COLUMNS = tuple(field.name for field in fields(Result))


def load_columns(path: Path) -> tuple[Column, ...]:
    """Read `columns.yaml` and make its scenario folders absolute.

    Raises:
        InputError: the file cannot be read or is invalid.
    """
    columns = _load_file(path, Columns).columns
    _require_unique([column.name for column in columns], path)
    return tuple(
        column.model_copy(update={"scenario": (path.parent / column.scenario).resolve()})
        for column in columns
    )


def load_contenders(path: Path) -> tuple[Contender, ...]:
    """Read `contenders.yaml`; strategies that it does not name follow with their defaults.

    Those that divide the model would need a plan for each column, and do not take part.

    Raises:
        InputError: the file cannot be read or is invalid.
    """
    listed = _load_file(path, Contenders).contenders
    named = [contender.name for contender in listed]
    _require_unique(named, path)
    return (
        *listed,
        *(Contender(name=name) for name in list_whole_model_strategies() if name not in named),
    )


def list_trials(
    columns: Sequence[Column], contenders: Sequence[Contender], seeds: Sequence[int], baseline: str
) -> Iterator[Trial]:
    """Yield all trials in order: by seed, then by column, with the baseline before the others.

    The others are shuffled. Their order depends only on the seed, the column and the names.
    """
    first = next(
        (contender for contender in contenders if contender.name == baseline),
        Contender(name=baseline),
    )
    others = sorted(
        (c for c in contenders if c.name != baseline), key=lambda contender: contender.name
    )
    for seed in seeds:
        for column in columns:
            shuffled = list(others)
            # A seed of text gives the same order in every process.
            random.Random(f"{seed} {column.name}").shuffle(shuffled)
            for contender in (first, *shuffled):
                yield Trial(column, contender, seed)


def build_overrides(
    trial: Trial, heterogeneity: Heterogeneity, accuracy: float, limit_s: float
) -> tuple[str, ...]:
    """Return the `--set` arguments of a run.

    They set the column, the strategy, the seed of every random part, and the stopping rule.

    Args:
        trial: trial to run.
        heterogeneity: heterogeneity of its scenario, whose random events get the seed.
        accuracy: accuracy at which the run stops.
        limit_s: virtual seconds after which the run is cut.
    """
    seeds = {
        f"heterogeneity.dynamic.{i}.random.seed": trial.seed
        for i, event in enumerate(heterogeneity.events)
        if isinstance(event, RandomHostEvent | RandomLinkEvent)
    }
    stop: JsonValue = {"accuracy": accuracy, "time": f"{limit_s:.3f}s"}
    values: dict[str, JsonValue] = {
        **trial.column.settings,
        **trial.contender.overrides(trial.column.name),
        **seeds,
        "workload.seed": trial.seed,
        "workload.stop": stop,
    }
    # Sorted, so that a nested key comes after a key that replaces the whole mapping.
    return tuple(f"{key}={json.dumps(value)}" for key, value in sorted(values.items()))


def get_time_limit_s(trial: Trial, results: Sequence[Result], baseline: str) -> float | None:
    """Return the virtual seconds after which a run is cut.

    Returns None while the baseline of the block has not reached the accuracy.
    """
    if trial.contender.name == baseline:
        return BASELINE_LIMIT_S
    key = (trial.column.name, baseline, trial.seed)
    known = [
        result
        for result in results
        if result.key == key and result.status == "done" and not result.is_cut
    ]
    return CUT_FACTOR * known[-1].makespan_s if known else None


def is_due(trial: Trial, results: Sequence[Result], tries: int) -> bool:
    """Return whether a run is still missing and has not used up its tries."""
    known = [result.status for result in results if result.key == trial.key]
    return "done" not in known and len(known) < tries


def read_results(table: Path) -> tuple[Result, ...]:
    """Read all rows of a table; none if there is no file yet."""
    if not table.exists():
        return ()
    with table.open(newline="") as file:
        return tuple(
            # A row with None was cut off when the comparison was killed.
            Result.from_row(row)
            for row in csv.DictReader(file)
            if None not in row.values()
        )


def append_result(table: Path, result: Result) -> None:
    """Append a row, and the heading if the table is new."""
    fresh = not table.exists()
    with table.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if fresh:
            writer.writeheader()
        writer.writerow(asdict(result))


def run_trial(trial: Trial, limit: float, runs: Path) -> Result:
    """Run a trial in a process of its own.

    Args:
        trial: trial to run.
        limit: virtual seconds after which the run is cut.
        runs: folder of run folders.

    Raises:
        InputError: the column's scenario is invalid with the values that it sets.
    """
    from laggard.scenario.load import load_scenario

    plain = load_scenario(
        trial.column.scenario, [f"{k}={json.dumps(v)}" for k, v in trial.column.settings.items()]
    )
    accuracy = plain.workload.stop.accuracy
    if accuracy is None:
        raise InputError(
            f"column {trial.column.name} has no target accuracy, which its runs need to stop — add"
            " `stop: {accuracy: ...}`"
        )
    settings = build_overrides(trial, plain.heterogeneity, accuracy, limit)
    ended = run_in_subprocess(
        trial.column.scenario,
        settings,
        runs,
        timeout_s=_RUN_OVERHEAD_S + 2 * limit,
        capture_errors=True,
    )
    if ended.result is None:
        log.warning(
            "%s: the run gave no result: %s", " ".join(map(str, trial.key)), ended.errors[-2000:]
        )
        return Result(*trial.key, status="failed", limit_s=limit, error=_shorten_text(ended.errors))
    return build_result(trial, limit, ended.result)


def build_result(trial: Trial, limit: float, answer: Mapping[str, object]) -> Result:
    """Build the row of a run from the answer of `laggard run --json`."""
    folder = Path(str(answer.get("folder")))
    outcome = answer.get("outcome")
    known: dict[str, object] = dict(outcome) if isinstance(outcome, dict) else {}
    named = {name: known[name] for name in COLUMNS if known.get(name) is not None}
    return Result(
        *trial.key,
        status=str(answer.get("status")),
        limit_s=limit,
        slips=_count_violations(folder),
        step_cpu_s=_step_cpu_s(folder),
        folder=folder.name,
        error=_shorten_text(str(answer.get("error") or "")),
        **named,  # type: ignore[arg-type]
    )


def _count_violations(folder: Path) -> int:
    path = folder / "fidelity_violations.json"
    return len(json.loads(path.read_text())) if path.exists() else 0


def _step_cpu_s(folder: Path) -> float:
    """Return the mean CPU seconds of a worker's step at full speed."""
    path = folder / "counters.json"
    work = json.loads(path.read_text()).get("work", []) if path.exists() else []
    steps = sum(rank["steps"] for rank in work)
    return sum(rank["full_speed_ns"] for rank in work) / steps / 1e9 if steps else 0.0


def _shorten_text(text: str) -> str:
    return " ".join(text.split())[-300:]


def _load_file(path: Path, kind: type[_FILE]) -> _FILE:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror} — create the file or make it readable"
        ) from error
    return validate_model(parse_yaml(data, str(path)), kind)


def _require_unique(names: Sequence[str], path: Path) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"{path}: the name {twice[0]} is used twice — give each entry its own name"
        )
