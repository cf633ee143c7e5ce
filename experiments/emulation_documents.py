"""What `laggard emulate` and `laggard links` say, as text for people and JSON for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.experiments.guarding import TimedSlip, slip_rows, slip_words
from laggard.experiments.results import JsonValue
from laggard.hosts import Host
from laggard.network_emulation.links import Constraint
from laggard.network_emulation.live_links import LiveLink

_LISTED = 20
_MOST_TOLD = 4


@dataclass(frozen=True)
class Up:
    """A continuum that is up and keeps its promises, but for what the warnings say that it
    cannot.
    """

    run_id: str
    folder: Path
    hosts: tuple[Host, ...]
    shares: Mapping[str, float]
    dilation: float
    warnings: tuple[str, ...]


def up_text(up: Up) -> str:
    """What to do with a continuum that is up."""
    last = up.hosts[-1].name
    slower = "" if up.dilation == 1 else f", {up.dilation:g} times slower than real time"
    rows = [
        "  ".join(
            ("", host.name, host.address, *host.ipv6, f"{_percent(up.shares[host.name])} of a core")
        )
        for host in up.hosts
    ]
    return "\n".join(
        [
            f"{len(up.hosts)} hosts are up{slower}:",
            *(
                rows
                if len(rows) <= _LISTED
                else [*rows[:_LISTED], f"  and {len(rows) - _LISTED} more"]
            ),
            (
                f"in another terminal: laggard ssh {last}, or laggard ssh {last} COMMAND, or"
                " laggard links"
            ),
            "Ctrl-C ends it, and every process in it",
        ]
    )


def up_document(up: Up) -> dict[str, JsonValue]:
    """The same as JSON."""
    hosts: list[JsonValue] = [
        {
            "name": host.name,
            "address": host.address,
            "ipv6": [*host.ipv6],
            "cpu_share": up.shares[host.name],
        }
        for host in up.hosts
    ]
    return {
        "status": "up",
        "id": up.run_id,
        "folder": str(up.folder),
        "dilation": up.dilation,
        "hosts": hosts,
        "warnings": list(up.warnings),
    }


def slipped_text(slips: Sequence[TimedSlip]) -> str:
    """What has just slipped, on one line."""
    told = [slip_words(each) for each in slips[:_MOST_TOLD]]
    more = [f"{len(slips) - _MOST_TOLD} more, in guard.json"] if len(slips) > _MOST_TOLD else []
    return "the emulation slipped, " + "; ".join((*told, *more))


def slipped_document(slips: Sequence[TimedSlip]) -> dict[str, JsonValue]:
    """The same as JSON."""
    rows: list[JsonValue] = [{**row} for row in slip_rows(slips)]
    return {"status": "slipped", "slips": rows}


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def link_document(link: LiveLink) -> dict[str, JsonValue]:
    """A live link as JSON; every quantity in virtual units."""
    group = link.group
    return {
        "src_layer": group.src_layer,
        "dst_layer": group.dst_layer,
        "pairs": [[src, dst] for src, dst in group.pairs],
        "requested": _constraint_document(group.requested),
        "current": _constraint_document(group.current),
        "asked_rtt_ms": link.asked_rtt_ms,
        "rtt_ms": link.rtt_ms,
        "carried_mbps": link.carried_mbps,
        "dropped": link.dropped,
    }


def _constraint_document(constraint: Constraint) -> dict[str, JsonValue]:
    return {
        "delay_ms": constraint.delay_ms,
        "jitter_ms": constraint.jitter_ms,
        "rate_mbps": constraint.rate_mbps,
        "loss_percent": constraint.loss_percent,
        "distribution": constraint.distribution,
        "burst_packets": constraint.burst_packets,
    }
