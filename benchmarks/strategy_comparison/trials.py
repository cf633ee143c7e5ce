"""A comparison: every strategy on every column (a continuum) with every seed, beside a baseline of
the same column and seed.

Two files say what there is: `columns.yaml` and `contenders.yaml`, both in `experiments/strategies`.
Results are appended to a table as soon as a run has ended, so that a comparison that was cut goes
on where it stopped when it is started again.

A block is one column with one seed: the baseline first, since a run that takes `CUT_FACTOR` times
as long as it is stopped, then the others, shuffled. Blocks of one seed go through all columns
before the next seed begins; so what the machine does meanwhile is shared by all.
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
from laggard.core.errors import InputError
from laggard.core.yaml_source import parse_yaml, validate_model
from laggard.network_emulation.model import Heterogeneity, RandomHostEvent, RandomLinkEvent
from laggard.workloads.strategies.registry import STRATEGY_NAMES

log = logging.getLogger(__name__)

CUT_FACTOR = 3.0
"""A run is stopped once it has taken this many times as long as the baseline of its block."""

BASELINE_LIMIT_S = 300.0
_RUN_OVERHEAD_S = 240.0
"""Real seconds that a run may take beside its training before it is killed; its evaluations are
counted with the training."""

_FILE = TypeVar("_FILE", bound=BaseModel)


class _StrictModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Column(_StrictModel):
    """A continuum: a scenario folder (relative to the file), and what of it is set, as by
    `--set`.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    scenario: Path
    settings: dict[str, JsonValue] = Field(alias="set", default_factory=dict)


class Contender(_StrictModel):
    """A strategy with its parameters; its name alone is the strategy of that name as it is."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    strategy: str | dict[str, JsonValue] | None = None
    settings: dict[str, JsonValue] = Field(
        alias="set", default_factory=dict, description="what is set beside it"
    )
    columns: dict[str, dict[str, JsonValue]] = Field(
        default_factory=dict, description="and on single columns"
    )

    def overrides(self, column: str) -> Mapping[str, JsonValue]:
        """What is set on a column."""
        strategy = self.name if self.strategy is None else self.strategy
        return {"workload.strategy": strategy, **self.settings, **self.columns.get(column, {})}


class Columns(_StrictModel):
    """`columns.yaml`."""

    columns: tuple[Column, ...] = Field(min_length=1)


class Contenders(_StrictModel):
    """`contenders.yaml`."""

    contenders: tuple[Contender, ...]


@dataclass(frozen=True)
class Trial:
    """One run of a comparison."""

    column: Column
    contender: Contender
    seed: int

    @property
    def key(self) -> tuple[str, str, int]:
        """What it is known by in a table."""
        return self.column.name, self.contender.name, self.seed


@dataclass(frozen=True)
class Result:
    """What one run gave: a row of the table.

    Attributes:
        stopped_by: `accuracy`, or what cut the run.
        limit_s: virtual seconds after which it was to be cut.
        slips: what the guard saw slip.
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
        """Of its trial."""
        return self.column, self.strategy, self.seed

    @property
    def is_cut(self) -> bool:
        """Whether it ended before it had the accuracy."""
        return self.stopped_by != "accuracy"

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> Self:
        """A row of the table."""
        return cls(**{field.name: _READ[str(field.type)](row[field.name]) for field in fields(cls)})  # type: ignore[arg-type]


_READ: Mapping[str, type[str | int | float]] = {"str": str, "int": int, "float": float}
COLUMNS = tuple(field.name for field in fields(Result))


def load_columns(path: Path) -> tuple[Column, ...]:
    """Read `columns.yaml`; scenario folders become absolute.

    Raises:
        InputError: the file is missing, or not such a file.
    """
    columns = _load_file(path, Columns).columns
    _require_unique([column.name for column in columns], path)
    return tuple(
        column.model_copy(update={"scenario": (path.parent / column.scenario).resolve()})
        for column in columns
    )


def load_contenders(path: Path) -> tuple[Contender, ...]:
    """Read `contenders.yaml`; strategies that it does not name follow, each as it is.

    Raises:
        InputError: the file is missing, or not such a file.
    """
    listed = _load_file(path, Contenders).contenders
    named = [contender.name for contender in listed]
    _require_unique(named, path)
    return (*listed, *(Contender(name=name) for name in STRATEGY_NAMES if name not in named))


def list_trials(
    columns: Sequence[Column], contenders: Sequence[Contender], seeds: Sequence[int], baseline: str
) -> Iterator[Trial]:
    """All runs in their order: by seed, then by column, there the baseline and then the others,
    shuffled.

    The order within a block depends on its seed, its column and the names in it alone.
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
            random.Random(f"{seed} {column.name}").shuffle(shuffled)
            for contender in (first, *shuffled):
                yield Trial(column, contender, seed)


def build_overrides(
    trial: Trial, heterogeneity: Heterogeneity, accuracy: float, limit_s: float
) -> tuple[str, ...]:
    """The `--set` arguments of a run: its column's, its strategy's, its seed everywhere, and when
    it stops.

    Args:
        trial: what is run.
        heterogeneity: of its scenario, whose random events take the seed.
        accuracy: at which it has done what it should.
        limit_s: virtual seconds after which it is cut.
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
    # A key below one that is set as a whole comes after it, or it would be lost.
    return tuple(f"{key}={json.dumps(value)}" for key, value in sorted(values.items()))


def get_time_limit_s(trial: Trial, results: Sequence[Result], baseline: str) -> float | None:
    """Virtual seconds after which a run is cut; None while the baseline of its block has not
    reached the accuracy.
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
    """Whether a run is still to be made: it has not been done, nor failed or slipped too often."""
    known = [result.status for result in results if result.key == trial.key]
    return "done" not in known and len(known) < tries


def read_results(table: Path) -> tuple[Result, ...]:
    """All rows of a table; none where there is no file yet."""
    if not table.exists():
        return ()
    with table.open(newline="") as file:
        return tuple(
            Result.from_row(row) for row in csv.DictReader(file) if None not in row.values()
        )


def append_result(table: Path, result: Result) -> None:
    """Add a row, and the heading where the table is new."""
    fresh = not table.exists()
    with table.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if fresh:
            writer.writeheader()
        writer.writerow(asdict(result))


def run_trial(trial: Trial, limit: float, runs: Path) -> Result:
    """Run it, in a process of its own.

    Args:
        trial: what is run.
        limit: virtual seconds after which it is cut.
        runs: the folder of run folders.

    Raises:
        InputError: the column's scenario, with what it sets, is not one.
    """
    from laggard.scenario.load import load_scenario

    plain = load_scenario(
        trial.column.scenario, [f"{k}={json.dumps(v)}" for k, v in trial.column.settings.items()]
    )
    accuracy = plain.workload.stop.accuracy
    if accuracy is None:
        raise InputError(
            f"{trial.column.name}: its runs end at an accuracy — give `stop: {{accuracy: ...}}`"
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
        log.warning("%s: no result: %s", " ".join(map(str, trial.key)), ended.errors[-2000:])
        return Result(*trial.key, status="failed", limit_s=limit, error=_shorten_text(ended.errors))
    return build_result(trial, limit, ended.result)


def build_result(trial: Trial, limit: float, answer: Mapping[str, object]) -> Result:
    """The row of a run that has answered, as `laggard run --json` does."""
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
    """What a step of the workers takes at full speed, in CPU seconds, on average."""
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
        raise InputError(f"{path}: cannot be read: {error.strerror} — give the file") from error
    return validate_model(parse_yaml(data, str(path)), kind)


def _require_unique(names: Sequence[str], path: Path) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{path}: {twice[0]} is there twice — give each a name of its own")
