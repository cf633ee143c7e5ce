"""Setup of a run for the report: facts, stages, hosts and machines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from laggard.analysis.report.style.labels import list_tiers
from laggard.analysis.tables.load_run import RankHost, RunData
from laggard.core.run_schema import VIRTUAL_TESTBED, ReservedJob, RunRecord
from laggard.core.text.text_format import format_percent, format_seconds

_BACKENDS = {
    "userspace": "Laggard's userspace link emulator",
    "netem": "the kernel's netem, through EnOSlib",
}
# Smaller clock errors are not reported, in nanoseconds.
_MOST_FILES = 20
_CLOCKS_APART_NS = 1000
_HOST_NAME_KEYS = frozenset({"host", "name", "rank", "tier", "address", "machine"})


@dataclass(frozen=True)
class ReportTable:
    """Plain table of the report."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def format_hosts_line(run: RunData) -> str:
    """Return a line such as `8 hosts: 2 cloud, 2 fog, 4 edge`."""
    tier_of = {h.host: h.tier for h in run.hosts}
    if not tier_of:
        return ""
    total = f"{len(tier_of)} host{'' if len(tier_of) == 1 else 's'}"
    count = Counter(tier_of.values())
    parts = [f"{count[tier]} {tier}" for tier in list_tiers(run.hosts) if tier]
    return f"{total}: {', '.join(parts)}" if parts else total


def list_facts(run: RunData) -> tuple[tuple[str, str], ...]:
    """Return the names and values of the facts that are known."""
    record = run.record
    if record is None:
        return (("Folder", run.folder.name), ("State", "ended before run.json was written"))
    known = [
        ("Started", record.started),
        ("Testbed", record.testbed),
        ("Strategy", record.strategy.description),
        ("Link emulation", _BACKENDS.get(record.backend or "", record.backend or "")),
        ("Time dilation", _format_dilation(record) if record.origin is None else ""),
        ("Clocks", _format_clocks(run)),
        ("Files of the plays", _format_play_files(run)),
        ("Reservations", ", ".join(_format_job(job) for job in record.jobs)),
        (
            "First step",
            (
                ""
                if record.first_step_s is None
                else f"{format_seconds(record.first_step_s)} after the command"
            ),
        ),
        ("Trace", _format_origin(record)),
        (
            "Emulation",
            (
                ""
                if record.origin is None
                else "Nothing was emulated: this trace comes from another tool."
            ),
        ),
        ("Seed", str(record.seed) if record.origin is None else ""),
        ("Revision", record.git or ""),
        ("Versions", ", ".join(f"{name} {version}" for name, version in record.versions.items())),
    ]
    return tuple((name, value) for name, value in known if value)


def _format_play_files(run: RunData) -> str:
    """Return the names of what the plays of an experiment left in the run folder."""
    folder = run.folder / "workflow"
    if run.record is None or run.record.trains or not folder.is_dir():
        return ""
    names = sorted(path.name for path in folder.iterdir())
    more = f" and {len(names) - _MOST_FILES} more" if len(names) > _MOST_FILES else ""
    return f"workflow/: {', '.join(names[:_MOST_FILES])}{more}" if names else ""


def build_setup_tables(run: RunData) -> tuple[ReportTable, ...]:
    """Return the tables of hosts, decisions, stages and machines that have rows."""
    tables = [_build_hosts_table(run)]
    if run.record is not None:
        tables += [
            _build_decisions_table(run),
            _build_stages_table(run.record),
            _build_machines_table(run.record),
        ]
    return tuple(table for table in tables if table.rows)


def _format_dilation(record: RunRecord) -> str:
    if record.testbed == VIRTUAL_TESTBED:
        return "none: nothing was emulated, and all times are computed"
    if record.dilation == 1.0:
        return "none: virtual time is real time"
    return (
        f"{record.dilation:.3g}: the continuum ran that many times slower than real time, and all"
        " times are reported undilated"
    )


def _format_clocks(run: RunData) -> str:
    """Return the possible error of the hosts' clocks, or "" if it is negligible."""
    errors_ns = [host.clock_error_ns for host in run.hosts]
    if max(errors_ns, default=0) < _CLOCKS_APART_NS:
        return ""
    worst = max(run.hosts, key=lambda host: host.clock_error_ns)
    return (
        f"one per host, aligned; the largest possible error is {worst.clock_error_ns / 1e6:.2g} ms"
        f" ({worst.host})"
    )


def _format_job(job: ReservedJob) -> str:
    released = "released" if job.released else "NOT released — run laggard destroy"
    return f"{job.name} ({job.job_id}) at {job.site}, {job.nodes} nodes, {released}"


def _build_hosts_table(run: RunData) -> ReportTable:
    imported = run.record is not None and run.record.origin is not None
    rows = tuple(
        (str(h.rank), h.host, h.tier, "" if imported else _format_share(h), h.address)
        for h in run.hosts
    )
    return ReportTable(
        f"Hosts ({len(rows)} ranks)", ("Rank", "Host", "Tier", "CPU share", "Address"), rows
    )


def _format_share(host: RankHost) -> str:
    return format_percent(host.cpu_share) + " of a core"


def _format_origin(record: RunRecord) -> str:
    return "" if record.origin is None else f"{record.origin.path}, format {record.origin.format}"


def _build_decisions_table(run: RunData) -> ReportTable:
    rows = tuple(
        (str(each.step), format_seconds(each.at_s), each.description) for each in run.decisions
    )
    return ReportTable("Decisions of the strategy", ("After step", "Time", "Decision"), rows)


def _build_stages_table(record: RunRecord) -> ReportTable:
    rows = tuple((stage.name, format_seconds(stage.seconds)) for stage in record.stages)
    return ReportTable("Stages, in real time", ("Stage", "Duration"), rows)


def _build_machines_table(record: RunRecord) -> ReportTable:
    """Build the table of machine fingerprints without host names; equal machines share a row."""
    prints = [{k: v for k, v in host.items() if k not in _HOST_NAME_KEYS} for host in record.hosts]
    keys = tuple(dict.fromkeys(key for fingerprint in prints for key in fingerprint))
    # A Counter keeps the order of first occurrence, so the table follows the ranks.
    rows = Counter(
        tuple(_format_cell(fingerprint.get(key)) for key in keys) for fingerprint in prints
    )
    if not keys:
        return ReportTable("Machines", (), ())
    return ReportTable(
        "Machines", ("Hosts", *keys), tuple((str(count), *row) for row, count in rows.items())
    )


def _format_cell(value: str | float | None) -> str:
    return "unknown" if value is None else str(value)
