"""State that a process of a continuum inherits from the process that forked it."""

from __future__ import annotations

import logging
import signal
import sys


def reset_inherited_state() -> None:
    """Give SIGTERM and SIGINT their default effect, and write the log to standard error.

    The processes of hosts are forks. Without this, they would handle signals like their parent,
    and log with its handlers.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(message)s",
        force=True,
    )
