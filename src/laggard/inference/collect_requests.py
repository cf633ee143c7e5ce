"""Collection of an inference: rows of requests to a table, figures and the report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from laggard.core.errors import RunFolderError
from laggard.core.files.input_files import read_json
from laggard.core.files.output_files import replace_file, write_json
from laggard.core.hosts import Host
from laggard.core.serving.outcome import AnsweredRequest, summarize_requests
from laggard.core.serving.request_schema import request_schema
from laggard.core.serving.serving_record import (
    REQUESTS_FILE,
    SERVING_FILE,
    DeviceService,
    LatencyParts,
    ServingRecord,
)
from laggard.core.virtual_time import Dilation
from laggard.inference.plan_nodes import list_departures
from laggard.run.run_context import RunContext
from laggard.run_folder.collect import report_untrained_run
from laggard.workloads.inference.request_log import RequestRow, requests_path
from laggard.workloads.inference_workload import InferenceWorkload
from laggard.workloads.output.worker_output import read_lines
from laggard.workloads.tracing.collect import collect

_ROWS = TypeAdapter(tuple[RequestRow, ...])
_NS = 1e9


def collect_inference(
    context: RunContext, workload: InferenceWorkload, hosts: Sequence[Host]
) -> None:
    """Write the tables, `serving.json` and the report of an inference, and complete its record.

    Args:
        context: run that it belongs to.
        workload: what it did.
        hosts: host of every node.

    Raises:
        RunFolderError: the rows of the requests are damaged.
    """
    output, folder, dilation = context.output_dir, context.folder, context.dilation
    if output.zero.exists():
        devices = len(hosts) - (workload.placement.server is not None)
        collect(output.folder, folder, hosts, dilation, context.scenario.shares)
        zero_ns = int(_read_zero(output.zero))
        rows = [_read_rows(output.folder, node) for node in range(devices)]
        _write_requests(folder / REQUESTS_FILE, rows, zero_ns, dilation)
        record = ServingRecord(
            devices=tuple(
                _describe_device(host, own, dilation)
                for host, own in zip(hosts[:devices], rows, strict=True)
            ),
        )
        write_json(folder / SERVING_FILE, record.model_dump(mode="json"))
        context.journal.warn(
            tuple(
                f"{host} left at {at_s:g} s; what it had not answered then is not counted"
                for at_s, host in list_departures(workload, hosts)
            )
        )
        if context.journal.record.status == "running":
            context.journal.update(status="done")
    report_untrained_run(context.journal)


def _read_zero(path: Path) -> float:
    document = read_json(path)
    assert isinstance(document, dict)
    zero_ns = document["zero_ns"]
    assert isinstance(zero_ns, int)
    return zero_ns


def _read_rows(folder: Path, node: int) -> tuple[RequestRow, ...]:
    path = requests_path(folder, node)
    try:
        return _ROWS.validate_python(read_lines(path))
    except (ValueError, ValidationError) as error:
        raise RunFolderError(f"{path}: the rows of requests are damaged — {error}") from error


def _write_requests(
    path: Path, rows: Sequence[Sequence[RequestRow]], zero_ns: int, dilation: Dilation
) -> None:
    """Write a row per request, in virtual seconds since the start."""
    flat = sorted(
        (row for own in rows for row in own), key=lambda each: (each.arrived_ns, each.node)
    )

    def since(at_ns: int) -> float | None:
        return None if at_ns < 0 else dilation.virtual_s((at_ns - zero_ns) / _NS)

    def lasting(duration_ns: int) -> float | None:
        return None if duration_ns < 0 else dilation.virtual_s(duration_ns / _NS)

    table = pa.Table.from_pylist(
        [
            {
                "rank": row.node,
                "request": row.number,
                "network": row.network,
                "arrived_s": since(row.arrived_ns),
                "answered_s": since(row.answered_ns),
                "deadline_s": lasting(row.deadline_ns),
                "cut": row.cut,
                "computed_s": lasting(row.computed_ns),
                "link_s": lasting(row.link_ns),
                "server_s": lasting(row.server_ns),
                "alone_s": lasting(row.alone_ns),
                "correct": row.correct,
                "samples": row.samples,
                "answers": row.answers,
                "feasible": row.feasible,
            }
            for row in flat
        ],
        schema=request_schema(),
    )
    with replace_file(path) as file:
        pq.write_table(table, file, compression="zstd")


def _describe_device(host: Host, rows: Sequence[RequestRow], dilation: Dilation) -> DeviceService:
    """Return the figures of one device."""

    def seconds(duration_ns: int) -> float:
        return dilation.virtual_s(duration_ns / _NS)

    answered = [row for row in rows if row.answered_ns >= 0]
    outcome = (
        summarize_requests(
            [
                AnsweredRequest(
                    seconds(row.arrived_ns),
                    seconds(row.answered_ns) if row.answered_ns >= 0 else None,
                    seconds(row.alone_ns),
                    seconds(row.deadline_ns) if row.deadline_ns >= 0 else math.inf,
                )
                for row in rows
            ]
        )
        if rows
        else None
    )
    samples = sum(row.samples for row in answered)
    return DeviceService(
        host=host.name,
        tier=host.layer,
        requests=len(rows),
        shed=len(rows) - len(answered),
        hopeless=sum(not row.feasible for row in rows),
        latency_s={} if outcome is None else outcome.percentiles_s,
        parts=_divide_latency(answered, dilation) if answered else None,
        violations=None if outcome is None else outcome.violations,
        antt=None if outcome is None else outcome.antt,
        accuracy=sum(row.correct for row in answered) / samples if samples else None,
        answers=float(np.mean([row.answers for row in answered])) if answered else 0.0,
        cuts=dict(sorted(Counter(row.cut for row in answered).items())),
    )


def _divide_latency(rows: Sequence[RequestRow], dilation: Dilation) -> LatencyParts:
    """Return where the mean latency of some answered requests went."""

    def mean_s(durations: Sequence[int]) -> float:
        return dilation.virtual_s(float(np.mean(durations)) / _NS)

    total_s = mean_s([row.answered_ns - row.arrived_ns for row in rows])
    computed_s = mean_s([row.computed_ns for row in rows])
    link_s, server_s = (
        mean_s([row.link_ns for row in rows]),
        mean_s([row.server_ns for row in rows]),
    )
    return LatencyParts(
        queue_s=max(total_s - computed_s - link_s - server_s, 0.0),
        computed_s=computed_s,
        link_s=link_s,
        server_s=server_s,
    )
