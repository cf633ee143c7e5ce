"""Live table of the links of a running emulation (`laggard links`)."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.errors import RunFolderError
from laggard.core.text.standard_streams import find_lost_output
from laggard.core.text.terminal_output import print_text
from laggard.emulate.control_messages import (
    ConstraintDocument,
    ControlRequest,
    LinkDocument,
    LinksReply,
)
from laggard.emulate.control_socket import send_request

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = ("links", "requested", "current", "RTT, ms", "measured", "Mbit/s", "dropped")
_FIRST_NUMERIC_COLUMN = 3
# Without a terminal, rich would wrap the table at 80 columns.
_WIDTH_IN_FILES = 200
_CAPTION = (
    "RTT: from the current delays; measured: on one link of the row. "
    "Mbit/s, dropped: all links of the row since the last update, IPv4 and IPv6 together."
)


def read_links(folder: Path) -> tuple[LinkDocument, ...]:
    """Return the live links of an emulation.

    Raises:
        RunFolderError: no emulation is running in this folder
        LaggardError: it is another user's, or its reply is not valid
    """
    return send_request(folder, ControlRequest(action="links"), LinksReply).links


def show_links(folder: Path, every_s: float) -> None:
    """Show the table until an interrupt or the end of the emulation.

    If the output is not a terminal, the table is printed once.

    Raises:
        RunFolderError: no emulation is running in this folder
        LaggardError: it is another user's, or its reply is not valid
    """
    from rich.console import Console
    from rich.live import Live

    table = build_links_table(read_links(folder))
    if not sys.stdout.isatty():
        text = io.StringIO()
        Console(file=text, width=_WIDTH_IN_FILES).print(table)
        print_text(text.getvalue().rstrip("\n"))
        return
    with Live(table, console=Console(), auto_refresh=False) as live:
        # After the terminal has gone, nobody would end the command.
        while find_lost_output() is None:
            live.update(table, refresh=True)
            time.sleep(every_s)
            try:
                table = build_links_table(read_links(folder))
            except RunFolderError:
                return  # the emulation has ended; its last state stays on the screen


def build_links_table(links: Sequence[LinkDocument]) -> Table:
    """Build the table of live links, with one row for all alike links.

    A row has a title such as `8 x cloud → edge`, or the two hosts of a single link.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, caption=_CAPTION, caption_justify="left")
    for i, column in enumerate(_COLUMNS):
        table.add_column(
            column, justify="right" if i >= _FIRST_NUMERIC_COLUMN else "left", overflow="fold"
        )
    for link in links:
        changed = format_constraint(link.requested) != format_constraint(link.current)
        # As `Text`, brackets in a name are not rich's markup.
        cells = [Text(cell) for cell in _format_row(link)]
        cells[2].style = "bold" if changed else ""
        table.add_row(*cells)
    return table


def _format_row(link: LinkDocument) -> tuple[str, ...]:
    requested, current = format_constraint(link.requested), format_constraint(link.current)
    return (
        " → ".join(link.pairs[0])
        if len(link.pairs) == 1
        else f"{len(link.pairs)} x {link.src_layer} → {link.dst_layer}",
        requested,
        "same" if requested == current else current,
        f"{link.requested_rtt_ms:.1f}",
        "no echo" if link.rtt_ms is None else f"{link.rtt_ms:.1f}",
        f"{link.carried_mbps:.2f}",
        f"{link.dropped}",
    )


def format_constraint(constraint: ConstraintDocument) -> str:
    """Format a constraint in a few words."""
    parts = [
        f"{constraint.delay_ms:g} ms",
        f"± {constraint.jitter_ms:g} ms{_format_distribution(constraint)}"
        if constraint.jitter_ms
        else "",
        f"{constraint.rate_mbps:g} Mbit/s" if constraint.rate_mbps is not None else "",
        f"{constraint.loss_percent:g} % lost{_format_bursts(constraint)}"
        if constraint.loss_percent
        else "",
    ]
    return ", ".join(part for part in parts if part)


def _format_distribution(constraint: ConstraintDocument) -> str:
    return "" if constraint.distribution == "uniform" else f" ({constraint.distribution})"


def _format_bursts(constraint: ConstraintDocument) -> str:
    return "" if constraint.burst_packets == 1 else f" in bursts of {constraint.burst_packets:g}"
