"""Process of lowest priority that watches a training for stragglers while it runs.

Each second it reads the new rows that the ranks and the link sampler have streamed, passes them to
the detector, and appends the alarms to `alarms.jsonl`. It takes nothing from the ranks, which
stream the same data without it. If this process fails, the training continues.
"""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from laggard.analysis.detection.online.alarm_text import format_alarms
from laggard.analysis.detection.online.detector import OnlineDetector
from laggard.analysis.detection.online.step_rows import iterate_async_rows, iterate_lockstep_rows
from laggard.analysis.tables.columns import LinkColumns, SpanColumns
from laggard.analysis.tables.load_run import RankHost
from laggard.analysis.tables.planned_blocks import list_teams
from laggard.core.process.inherited_state import reset_inherited_state
from laggard.core.run_schema import Alarm
from laggard.core.span_schema import Lane
from laggard.core.virtual_time import Dilation
from laggard.run.straggler_watcher_plan import WatcherPlan
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.tracing.following import RowFollower
from laggard.workloads.tracing.row_types import LINK_ROW, SPAN_ROW, Rows
from laggard.workloads.tracing.source_rows import read_zero_ns

LOGGER = logging.getLogger(__name__)
POLL_INTERVAL_S = 1.0
# Lowest priority, so that the watcher uses only CPU time that nobody else needs.
NICE = 19
_SLEEP_S = 0.1
_DURATION_COLUMNS = (
    "rtt_us",
    "min_rtt_us",
    "busy_us",
    "rwnd_limited_us",
    "sndbuf_limited_us",
    "last_send_ms",
)
_COUNT_COLUMNS = ("src_port", "dst_port", "bytes_acked", "retransmits")


def main(argument: str) -> None:
    """Watch until the training is done.

    Args:
        argument: a `WatcherPlan` as JSON.
    """
    reset_inherited_state()
    os.nice(NICE)
    # Collections skip frozen objects. Visiting them would copy the memory pages that this process
    # shares with the fork server.
    gc.freeze()
    try:
        _run_watcher(WatcherPlan.model_validate_json(argument))
    except Exception:
        LOGGER.exception("the straggler watcher failed; the training continues without it")


def _run_watcher(plan: WatcherPlan) -> None:
    Path(plan.alarms).touch()
    output_dir = WorkerOutputDir(Path(plan.output_dir))
    watcher = StragglerWatcher(plan)
    is_over = False
    while not is_over:
        is_over = _is_over(output_dir, POLL_INTERVAL_S)
        watcher.poll()
    LOGGER.info("%d alarms; used %.2f s of CPU time", watcher.alarm_count, time.process_time())


def _is_over(output_dir: WorkerOutputDir, patience_s: float) -> bool:
    """Wait at most `patience_s` seconds for the training to end, and return whether it has."""
    deadline = time.monotonic() + patience_s
    while not (is_over := output_dir.done.exists()) and time.monotonic() < deadline:
        time.sleep(_SLEEP_S)
    return is_over


@dataclass
class StragglerWatcher:
    """Reader of the streams, with a detector, that writes alarms.

    Args:
        plan: plan of the watcher.
    """

    plan: WatcherPlan
    _zero_ns: int | None = None
    _reported_s: dict[int, float] = field(default_factory=dict)
    _waiting: list[Rows] = field(default_factory=list)

    def __post_init__(self) -> None:
        output_dir, world = WorkerOutputDir(Path(self.plan.output_dir)), len(self.plan.hosts)
        self._output_dir = output_dir
        self._followers = {
            rank: [RowFollower(output_dir.spans(rank), SPAN_ROW)] for rank in range(world)
        }
        self._link_follower = RowFollower(output_dir.links, LINK_ROW)
        self._detector = OnlineDetector(
            tuple(
                RankHost(rank, *each, "cpu", 1.0, 0, 0) for rank, each in enumerate(self.plan.hosts)
            ),
            self.plan.lockstep,
            list_teams(self.plan.stages, world),
        )
        self._waiting = [np.zeros(0, dtype=SPAN_ROW) for _ in range(world)]
        self._dilation = Dilation(self.plan.dilation)

    @property
    def alarm_count(self) -> int:
        """Return the number of alarms so far."""
        return len(self._reported_s)

    def poll(self) -> None:
        """Process the rows that have arrived since the last call."""
        if self._zero_ns is None:
            self._zero_ns = read_zero_ns(self._output_dir)
        if self._zero_ns is None:
            return
        links = self._link_follower.read()
        self._detector.update_links(
            _to_link_columns(links, self.plan.sampled, self._zero_ns, self.plan.dilation)
        )
        spans = self._pop_finished_spans()
        if not len(spans):
            return
        columns, world = (
            _to_span_columns(spans, self._zero_ns, self.plan.dilation),
            len(self.plan.hosts),
        )
        rows = (
            iterate_lockstep_rows(columns, world)
            if self.plan.lockstep
            else iterate_async_rows(columns, world)
        )
        for step in rows:
            self._write_alarms(self._detector.update(step))

    def _pop_finished_spans(self) -> Rows:
        """Remove and return the spans of finished steps.

        A rank's step is finished once the rank has begun its next step. In lockstep, a step counts
        only when it is finished on all ranks.
        """
        for rank, followers in self._followers.items():
            # A rank that left and joined again streams into a new file.
            following = self._output_dir.spans(rank, len(followers))
            if following.exists():
                followers.append(RowFollower(following, SPAN_ROW))
            new = np.concatenate([follower.read() for follower in followers])
            self._waiting[rank] = np.concatenate(
                [self._waiting[rank], new[new["lane"] == Lane.MAIN]]
            )
        reached = [int(rows["step"].max()) if len(rows) else -1 for rows in self._waiting]
        if self.plan.lockstep:
            reached = [min(reached)] * len(reached)
        done = [
            rows[rows["step"] < step] for rows, step in zip(self._waiting, reached, strict=True)
        ]
        self._waiting = [
            rows[rows["step"] >= step] for rows, step in zip(self._waiting, reached, strict=True)
        ]
        return np.concatenate(done)

    def _write_alarms(self, alarms: Sequence[Alarm]) -> None:
        """Append alarms to the file and the log, each with the time of its first report."""
        if not alarms:
            return
        assert self._zero_ns is not None
        reported_s = round(self._dilation.virtual_s((time.monotonic_ns() - self._zero_ns) / 1e9), 3)
        known = frozenset(self._reported_s)
        self._reported_s |= {
            alarm.number: reported_s for alarm in alarms if alarm.number not in self._reported_s
        }
        stamped = [
            alarm.model_copy(update={"reported_s": self._reported_s[alarm.number]})
            for alarm in alarms
        ]
        with Path(self.plan.alarms).open("a") as file:
            file.write("".join(alarm.model_dump_json() + "\n" for alarm in stamped))
        tiers = {host: tier for host, _, tier in self.plan.hosts}
        for text in format_alarms(alarms, known, tiers):
            LOGGER.info("%s", text)


def _to_span_columns(rows: Rows, zero_ns: int, dilation: float) -> SpanColumns:
    """Convert spans to virtual time since the first step, sorted like `spans.parquet`."""
    values = {name: rows[name].astype(np.int64) for name in SPAN_ROW.names or ()}
    start = np.floor((values["start_ns"] - zero_ns) / dilation).astype(np.int64)
    end = np.floor((values["start_ns"] + values["dur_ns"] - zero_ns) / dilation).astype(np.int64)
    columns = SpanColumns(**(values | {"start_ns": start, "dur_ns": end - start}))
    return columns.where(np.lexsort((columns.start_ns, columns.rank, columns.step)))


def _to_link_columns(
    rows: Rows, names: Sequence[str], zero_ns: int, dilation: float
) -> LinkColumns:
    """Convert the samples since the first step to virtual time."""
    rows = rows[rows["time_ns"] >= zero_ns]
    hosts = np.array(names, dtype=np.str_)
    durations = {
        name: np.rint(rows[name] / dilation).astype(np.int64) for name in _DURATION_COLUMNS
    }
    return LinkColumns(
        time_ns=np.floor((rows["time_ns"] - zero_ns) / dilation).astype(np.int64),
        src=hosts[rows["src"]],
        dst=hosts[rows["dst"]],
        app_limited=rows["app_limited"].astype(np.bool_),
        delivery_rate_mbps=rows["delivery_rate_bytes_per_s"] * (8e-6 * dilation),
        **{name: rows[name].astype(np.int64) for name in _COUNT_COLUMNS},
        **durations,
    )
