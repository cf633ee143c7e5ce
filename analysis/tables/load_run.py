"""Reader of run folders; the incomplete folder of a killed run can be read too.

`events.parquet`, the injected truth, is never opened: findings must derive from data that a real
testbed also records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from laggard.analysis.tables.arrow_columns import (
    require_short_texts,
    to_array,
    to_columns,
    to_span_columns,
)
from laggard.analysis.tables.columns import (
    Columns,
    FloatArray,
    LinkColumns,
    SpanColumns,
    StepColumns,
)
from laggard.analysis.tables.planned_blocks import find_planned_blocks, list_teams, number_stages
from laggard.analysis.tables.stored_tables import StoredSpans, StoredSteps, TableFile
from laggard.core.contribution.ledger import LedgerEntry, require_whole_ledger
from laggard.core.errors import InputError, RunFolderError
from laggard.core.files.input_files import parse_json, read_bounded, read_json
from laggard.core.run_schema import (
    ALARMS_FILE,
    FEDERATED_FILE,
    LEDGER_FILE,
    STREAM_FILE,
    Alarm,
    Decision,
    FederatedTraining,
    FidelityCheck,
    Record,
    RunRecord,
    StreamTask,
    select_latest_alarms,
)
from laggard.core.serving.serving_record import SERVING_FILE, ServingRecord
from laggard.core.span_schema import host_schema, link_schema, span_schema, step_schema

if TYPE_CHECKING:
    import pyarrow as pa

MAX_ROWS_IN_MEMORY = 4_000_000
"""Tables with more rows are read in parts. A span takes about a hundred bytes."""

_C = TypeVar("_C", bound=Columns)
_R = TypeVar("_R", bound=Record)
_T = TypeVar("_T")


@dataclass(frozen=True)
class RankHost:
    """Host of one rank (a row of `hosts.parquet`).

    `cpu_share` is for display only; findings never use it.
    """

    rank: int
    host: str
    address: str
    tier: str
    device_class: str
    cpu_share: float
    clock_offset_ns: int
    clock_error_ns: int


@dataclass(frozen=True)
class RunData:
    """Contents of a run folder.

    Attributes:
        folder: path of the run folder.
        record: `run.json`; None if the run died before writing it.
        hosts: one entry per rank, in rank order.
        spans: all spans, sorted by step, rank and start.
        steps: one row per rank and step.
        links: TCP samples; may be empty.
        fidelity: results of the fidelity checks; empty if nothing was checked.
        decisions: decisions that the strategy made during the run.
        alarms: live alarms, each in its last state.
        stream_tasks: tasks of the stream of samples; empty without a stream.
        federated: rounds of a federated training; None for another one.
        ledger: transfers of tokens; empty without tokens.
        serving: figures of an inference; None for another run.
    """

    folder: Path
    record: RunRecord | None
    hosts: tuple[RankHost, ...]
    spans: SpanColumns
    steps: StepColumns
    links: LinkColumns
    fidelity: tuple[FidelityCheck, ...]
    decisions: tuple[Decision, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    stream_tasks: tuple[StreamTask, ...] = ()
    federated: FederatedTraining | None = None
    ledger: tuple[LedgerEntry, ...] = ()
    serving: ServingRecord | None = None
    # Results of `memoize`; they depend on the other fields only and are not compared.
    _memo: dict[Callable[[RunData], object], object] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def memoize(self, make: Callable[[RunData], _T]) -> _T:
        """Return the result of a function of this run; the function is called only once."""
        if make not in self._memo:
            self._memo[make] = make(self)
        return cast("_T", self._memo[make])

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return len(self.hosts)

    @property
    def teams(self) -> tuple[tuple[int, ...], ...]:
        """Return the ranks that do the same work: those of each pipeline stage, or all ranks."""
        origin = None if self.record is None else self.record.origin
        stages = (
            number_stages(find_planned_blocks(self.record), [each.host for each in self.hosts])
            if origin is None
            else origin.stages
        )
        return list_teams(stages, self.world_size)

    @property
    def is_lockstep(self) -> bool:
        """Return whether all ranks took the same steps until the end.

        A run without a record counts as lockstep.
        """
        record = self.record
        if record is None:
            return True
        replayable = record.origin is None or record.origin.replayable
        return (
            replayable
            and record.strategy.sync_mode == "lockstep"
            and not record.lost_ranks
            and not record.churn
        )


def load_run(path: Path, max_rows_in_memory: int = MAX_ROWS_IN_MEMORY) -> RunData:
    """Read a run folder.

    Args:
        path: `runs/<scenario>/<run-id>`, or a link to it.
        max_rows_in_memory: number of rows up to which a table is held in memory; larger ones are
            read in parts when needed.

    Returns:
        The run; tables that a killed run did not write are empty.

    Raises:
        RunFolderError: the path is not a run folder, or a file in it has other content than its
            name says.

    Examples:
        >>> run = load_run(Path("runs/quickstart/latest"))
        >>> run.world_size
        8
        >>> run.hosts[0].host
        'cloud.trainer.1.1'
    """
    folder = path.resolve()
    if not folder.is_dir():
        raise RunFolderError(
            f"{path}: not a folder; give the folder of a run (`laggard runs` lists all runs)"
        )
    if not any((folder / name).is_file() for name in ("run.json", "spans.parquet")):
        raise RunFolderError(
            f"{path}: not a run folder, since it has neither run.json nor spans.parquet; give the"
            " folder of one run, such as runs/<scenario>/<run-id>"
        )
    spans = _read_spans(folder / "spans.parquet", max_rows_in_memory)
    steps = _read_steps(folder / "steps.parquet", max_rows_in_memory)
    hosts = _read_hosts(folder / "hosts.parquet", max(spans.max_rank, steps.max_rank))
    return RunData(
        folder=folder,
        record=_read_record(folder / "run.json"),
        hosts=hosts,
        spans=spans,
        steps=steps,
        links=_read_columns(LinkColumns, folder / "links.parquet", link_schema()),
        fidelity=_read_list(folder / "fidelity.json", FidelityCheck, "fidelity checks"),
        decisions=_read_list(folder / "decisions.json", Decision, "decisions"),
        alarms=read_alarms(folder / ALARMS_FILE),
        stream_tasks=_read_stream_tasks(folder / STREAM_FILE),
        federated=_read_federated(folder / FEDERATED_FILE, hosts),
        ledger=_read_ledger(folder / LEDGER_FILE, len(hosts)),
        serving=_read_serving(folder / SERVING_FILE),
    )


def _read_record(path: Path) -> RunRecord | None:
    if not path.exists():
        return None
    try:
        return RunRecord.model_validate(read_json(path))
    except ValueError as error:
        raise RunFolderError(
            f"{path}: not a run record that this version of Laggard can read: {error}"
        ) from error


def _read_list(path: Path, kind: type[_R], contents: str) -> tuple[_R, ...]:
    from pydantic import TypeAdapter

    if not path.exists():
        return ()
    try:
        documents = TypeAdapter(tuple[kind, ...])  # type: ignore[valid-type]
        return documents.validate_python(read_json(path))
    except ValueError as error:
        raise RunFolderError(f"{path}: not a valid list of {contents}: {error}") from error


def _read_stream_tasks(path: Path) -> tuple[StreamTask, ...]:
    tasks = _read_list(path, StreamTask, "tasks")
    evaluated = {each.steps for each in tasks}
    counts = {
        len(each) for task in tasks for each in (task.steps, task.accuracies, *task.tiers.values())
    }
    if len(evaluated) > 1 or len(counts) > 1 or len({tuple(each.tiers) for each in tasks}) > 1:
        raise RunFolderError(f"{path}: the tasks do not have the same evaluations")
    return tasks


def _read_federated(path: Path, hosts: Sequence[RankHost]) -> FederatedTraining | None:
    if not path.exists():
        return None
    try:
        training = FederatedTraining.model_validate(read_json(path))
    except ValueError as error:
        raise RunFolderError(
            f"{path}: not the valid rounds of a federated training: {error}"
        ) from error
    ranks = {answer.rank for each in training.rounds for answer in each.answers}
    ranks |= {each.worst_rank for each in training.evaluations}
    if foreign := ranks - {host.rank for host in hosts}:
        raise RunFolderError(
            f"{path}: rank {min(foreign)} took part in rounds and is none of the {len(hosts)} ranks"
        )
    return training


def _read_serving(path: Path) -> ServingRecord | None:
    if not path.exists():
        return None
    try:
        return ServingRecord.model_validate(read_json(path))
    except ValueError as error:
        raise RunFolderError(f"{path}: not the valid figures of an inference: {error}") from error


def _read_ledger(path: Path, clients: int) -> tuple[LedgerEntry, ...]:
    entries = _read_json_lines(path, LedgerEntry, "entry of a ledger")
    if foreign := next((each.rank for each in entries if each.rank >= clients), None):
        raise RunFolderError(f"{path}: rank {foreign} has tokens and is none of {clients} ranks")
    try:
        require_whole_ledger(entries)
    except InputError as error:
        raise RunFolderError(f"{path}: {error}") from error
    return entries


def read_alarms(path: Path) -> tuple[Alarm, ...]:
    """Return the alarms of `alarms.jsonl`, each in its last state; none if there is no file.

    A last line that a kill cut short is ignored.

    Raises:
        RunFolderError: the file does not consist of alarms.
    """
    return select_latest_alarms(_read_json_lines(path, Alarm, "alarm"))


def _read_json_lines(path: Path, kind: type[_R], name: str) -> tuple[_R, ...]:
    if not path.exists():
        return ()
    # A last line without its newline was cut short by a kill.
    whole, _, _ = read_bounded(path).rpartition(b"\n")
    try:
        return tuple(kind.model_validate(parse_json(line)) for line in whole.splitlines())
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path}: a line is not a valid {name}: {error}") from error


def _read_columns(kind: type[_C], path: Path, schema: pa.Schema) -> _C:
    return to_columns(kind, _read_table(path, schema), path)


def _read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """Return the table of a file; an empty one if there is no file."""
    return TableFile(path, schema).read_all() if path.exists() else schema.empty_table()


def _read_spans(path: Path, max_rows_in_memory: int) -> SpanColumns:
    if not path.exists():
        return to_span_columns(span_schema().empty_table(), path)
    file = TableFile(path, span_schema())
    # `file.groups` is empty if the row groups are not ordered by step; then only a complete read
    # can sort the rows.
    return (
        StoredSpans(file)
        if len(file) > max_rows_in_memory and file.groups
        else to_span_columns(file.read_all(), path)
    )


def _read_steps(path: Path, max_rows_in_memory: int) -> StepColumns:
    if not path.exists():
        return to_columns(StepColumns, step_schema().empty_table(), path)
    file = TableFile(path, step_schema())
    return (
        StoredSteps(file)
        if len(file) > max_rows_in_memory and file.groups
        else to_columns(StepColumns, file.read_all(), path)
    )


def _read_hosts(path: Path, max_rank: int) -> tuple[RankHost, ...]:
    """Return the hosts by rank.

    Ranks up to `max_rank` that have no row get a placeholder named after the rank.
    """
    table = _read_table(path, host_schema())
    if any(column.null_count for column in table.columns):
        raise RunFolderError(f"{path}: a value is missing — copy the file again")
    for name in ("host", "address", "tier", "device_class"):
        require_short_texts(table.column(name), name, path)
    to_array(table, "rank", path)
    if not np.isfinite(to_array(table, "cpu_share", path)).all():
        raise RunFolderError(f"{path}: column cpu_share: not a finite number — copy the file again")
    rows = {row["rank"]: RankHost(**row) for row in table.to_pylist()}
    present = range(max([*rows, max_rank], default=-1) + 1)
    return tuple(rows.get(r, RankHost(r, f"rank {r}", "", "", "", 1.0, 0, 0)) for r in present)


def create_empty_links() -> LinkColumns:
    """Return the columns of a `links.parquet` without samples."""
    text = np.array([], dtype=np.str_)
    values: dict[str, npt.NDArray[Any]] = {
        f.name: np.array([], dtype=np.int64) for f in fields(LinkColumns)
    }
    rates: FloatArray = np.array([], dtype=np.float64)
    values |= {
        "src": text,
        "dst": text,
        "delivery_rate_mbps": rates,
        "app_limited": np.array([], dtype=np.bool_),
    }
    return LinkColumns(**values)
