"""Output of `laggard emulate` and `laggard links`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.core.files.input_files import JsonDocument
from laggard.core.hosts import Host
from laggard.emulate.control_messages import ConstraintDocument, LinkDocument
from laggard.network_emulation.fidelity.live_links import LiveLink
from laggard.network_emulation.link_plan import Constraint
from laggard.run_folder.fidelity_violations import (
    TimedViolation,
    format_first,
    to_violation_rows,
)

_MAX_HOSTS_LISTED = 20


@dataclass(frozen=True)
class EmulationStatus:
    """Status of a continuum that is up; `warnings` lists the limits that it cannot enforce."""

    run_id: str
    folder: Path
    hosts: tuple[Host, ...]
    shares: Mapping[str, float]
    dilation: float
    warnings: tuple[str, ...]


def format_status(status: EmulationStatus) -> str:
    """Format the hosts of a running continuum and instructions for its use."""
    last = status.hosts[-1].name
    speed_text = (
        "" if status.dilation == 1 else f", {status.dilation:g} times slower than real time"
    )
    rows = [
        "  ".join(
            (
                "",
                host.name,
                host.address,
                *host.ipv6,
                f"{_format_percent(status.shares[host.name])} of a core",
            )
        )
        for host in status.hosts
    ]
    return "\n".join(
        [
            f"{len(status.hosts)} hosts are up{speed_text}:",
            *(
                rows
                if len(rows) <= _MAX_HOSTS_LISTED
                else [*rows[:_MAX_HOSTS_LISTED], f"  and {len(rows) - _MAX_HOSTS_LISTED} more"]
            ),
            (
                f"in another terminal, run: laggard ssh {last}, laggard ssh {last} COMMAND, or"
                " laggard links"
            ),
            "Ctrl-C ends the emulation and every process in it",
        ]
    )


def build_status_document(status: EmulationStatus) -> dict[str, JsonDocument]:
    """Build the same information as JSON."""
    hosts: list[JsonDocument] = [
        {
            "name": host.name,
            "address": host.address,
            "ipv6": [*host.ipv6],
            "cpu_share": status.shares[host.name],
        }
        for host in status.hosts
    ]
    return {
        "status": "up",
        "id": status.run_id,
        "folder": str(status.folder),
        "dilation": status.dilation,
        "hosts": hosts,
        "warnings": list(status.warnings),
    }


def format_violations(violations: Sequence[TimedViolation]) -> str:
    """Format new fidelity violations on one line."""
    return "the emulation was out of tolerance: " + "; ".join(format_first(violations))


def build_violations_document(violations: Sequence[TimedViolation]) -> dict[str, JsonDocument]:
    """Build the same information as JSON."""
    rows: list[JsonDocument] = [{**row} for row in to_violation_rows(violations)]
    return {"status": "violated", "violations": rows}


def _format_percent(share: float) -> str:
    return f"{100 * share:g} %"


def build_link_document(link: LiveLink) -> LinkDocument:
    """Build the JSON document of a live link; every quantity is in virtual units."""
    group = link.group
    return LinkDocument(
        src_layer=group.src_layer,
        dst_layer=group.dst_layer,
        pairs=group.pairs,
        requested=_build_constraint_document(group.requested),
        current=_build_constraint_document(group.current),
        requested_rtt_ms=link.requested_rtt_ms,
        rtt_ms=link.rtt_ms,
        carried_mbps=link.carried_mbps,
        dropped=link.dropped,
    )


def _build_constraint_document(constraint: Constraint) -> ConstraintDocument:
    return ConstraintDocument(
        delay_ms=constraint.delay_ms,
        jitter_ms=constraint.jitter_ms,
        rate_mbps=constraint.rate_mbps,
        loss_percent=constraint.loss_percent,
        distribution=constraint.distribution,
        burst_packets=constraint.burst_packets,
    )
