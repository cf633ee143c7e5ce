"""Live table of the links of a running emulation (`laggard links`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.errors import RunFolderError
from laggard.core.files.input_files import JsonDocument
from laggard.emulate.control_socket import ControlRequest, send_request

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = ("links", "requested", "current", "RTT, ms", "measured", "Mbit/s", "dropped")
_FIRST_NUMERIC_COLUMN = 3
_CAPTION = (
    "RTT: from the current delays; measured: on one link of the row. "
    "Mbit/s, dropped: all links of the row since the last update, IPv4 and IPv6 together."
)


def read_links(folder: Path) -> list[JsonDocument]:
    """Return the live links of an emulation, in the form of `output.build_link_document`.

    Raises:
        RunFolderError: no emulation is running in this folder
    """
    content, _ = send_request(folder, ControlRequest(action="links"))
    links = content["links"]
    assert isinstance(links, list)
    return links


def show_links(folder: Path, every_s: float) -> None:
    """Show the table until an interrupt or the end of the emulation.

    If the output is not a terminal, the table is printed once.

    Raises:
        RunFolderError: no emulation is running in this folder
    """
    from rich.console import Console
    from rich.live import Live

    console = Console()
    table = build_links_table(read_links(folder))
    if not sys.stdout.isatty():
        # Without a terminal, rich would wrap the table at 80 columns.
        Console(width=200).print(table)
        return
    with Live(table, console=console, auto_refresh=False) as live:
        while True:
            live.update(table, refresh=True)
            time.sleep(every_s)
            try:
                table = build_links_table(read_links(folder))
            except RunFolderError:
                return  # the emulation has ended; its last state stays on the screen


def build_links_table(links: list[JsonDocument]) -> Table:
    """Build the table of live links, with one row for all alike links.

    A row has a title such as `8 x cloud → edge`, or the two hosts of a single link.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, caption=_CAPTION, caption_justify="left")
    for i, column in enumerate(_COLUMNS):
        table.add_column(
            column, justify="right" if i >= _FIRST_NUMERIC_COLUMN else "left", overflow="fold"
        )
    for link in links:
        assert isinstance(link, dict)
        table.add_row(*_format_row(link))
    return table


def _format_row(link: Mapping[str, JsonDocument]) -> tuple[str, ...]:
    pairs, requested, current = link["pairs"], link["requested"], link["current"]
    assert isinstance(pairs, list)
    assert isinstance(requested, dict)
    assert isinstance(current, dict)
    first = pairs[0]
    assert isinstance(first, list)
    requested_text, current_text = format_constraint(requested), format_constraint(current)
    rtt_ms = link["rtt_ms"]
    return (
        " → ".join(map(str, first))
        if len(pairs) == 1
        else f"{len(pairs)} x {link['src_layer']} → {link['dst_layer']}",
        requested_text,
        "same" if requested_text == current_text else f"[bold]{current_text}[/bold]",
        f"{link['requested_rtt_ms']:.1f}",
        "no echo" if rtt_ms is None else f"{rtt_ms:.1f}",
        f"{link['carried_mbps']:.2f}",
        f"{link['dropped']}",
    )


def format_constraint(constraint: Mapping[str, JsonDocument]) -> str:
    """Format a constraint in a few words."""
    parts = [
        f"{constraint['delay_ms']:g} ms",
        f"± {constraint['jitter_ms']:g} ms{_format_distribution(constraint)}"
        if constraint["jitter_ms"]
        else "",
        f"{constraint['rate_mbps']:g} Mbit/s" if constraint["rate_mbps"] is not None else "",
        f"{constraint['loss_percent']:g} % lost{_format_bursts(constraint)}"
        if constraint["loss_percent"]
        else "",
    ]
    return ", ".join(part for part in parts if part)


def _format_distribution(constraint: Mapping[str, JsonDocument]) -> str:
    return "" if constraint["distribution"] == "uniform" else f" ({constraint['distribution']})"


def _format_bursts(constraint: Mapping[str, JsonDocument]) -> str:
    return (
        "" if constraint["burst_packets"] == 1 else f" in bursts of {constraint['burst_packets']:g}"
    )
