"""Counters and injected events of a training, as files of the run folder."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

from laggard.core.emulated_drive import DriveCounters
from laggard.core.files.output_files import replace_file, write_json
from laggard.core.span_schema import event_schema
from laggard.core.work_counter import WorkDone
from laggard.network_emulation.dynamics import EventRecord
from laggard.network_emulation.links.backend import LinkBackend, LinkCounters
from laggard.network_emulation.links.plan_links import Pair
from laggard.workloads.tracing.traffic import Traffic

COUNTERS_FILE = "counters.json"
_log = logging.getLogger(__name__)


def write_events(folder: Path, events: Sequence[EventRecord]) -> None:
    """Write `events.parquet`: each injected event and the time of its effect."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [asdict(event) for event in events]
    with replace_file(folder / "events.parquet") as file:
        pq.write_table(pa.Table.from_pylist(rows, schema=event_schema()), file)


def write_counters(
    folder: Path,
    links: LinkBackend,
    counters_before: Mapping[Pair, LinkCounters],
    drives: Mapping[str, DriveCounters] = MappingProxyType({}),
    peaks: Mapping[str, int] = MappingProxyType({}),
    work: Mapping[int, WorkDone] = MappingProxyType({}),
    traffic: Sequence[Traffic] = (),
) -> None:
    """Write `counters.json`.

    It contains the traffic of links and drives during training, the emulator's lateness, and the
    memory, work and traffic of the workers.

    Args:
        folder: run folder.
        links: backend of the links.
        counters_before: counters of the links when training began.
        drives: counters of the drives, by host.
        peaks: largest memory in bytes, by host.
        work: work of each rank.
        traffic: messages sent by the workers.
    """
    rows = []
    for (src, dst), after in links.counters().items():
        first = counters_before.get((src, dst), LinkCounters(0, 0, 0))
        rows.append(
            {"src": src, "dst": dst, **asdict(_count_since(f"{src} to {dst}", first, after))}
        )
    document = {"backend": links.name, "lateness_ms": links.lateness_ms(), "links": rows}
    document["drives"] = [{"host": host, **asdict(work_file)} for host, work_file in drives.items()]
    document["memory"] = [{"host": host, "peak_bytes": held} for host, held in peaks.items()]
    document["work"] = [{"rank": rank, **asdict(done)} for rank, done in work.items()]
    document["traffic"] = [asdict(each) for each in traffic]
    write_json(folder / COUNTERS_FILE, document)


def _count_since(link: str, first: LinkCounters, after: LinkCounters) -> LinkCounters:
    """Return what a link has carried since; all that it counted if its counter began anew."""
    change = LinkCounters(
        after.bytes - first.bytes, after.packets - first.packets, after.dropped - first.dropped
    )
    if min(change.bytes, change.packets, change.dropped) >= 0:
        return change
    _log.warning(
        "%s: the queue of this link was made anew, so its traffic before is not counted", link
    )
    return after
