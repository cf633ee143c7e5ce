"""Processes below another one, looked at while they end: one that is gone is left out."""

from __future__ import annotations

from collections.abc import Callable

import psutil


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs: one that has ended does not, also if nobody has waited for it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def find_below(
    parent: psutil.Process, matches: Callable[[psutil.Process], bool]
) -> list[psutil.Process]:
    """The processes below a living one that match, as far as they do not end meanwhile."""
    found = []
    for each in parent.children(recursive=True):
        try:
            if matches(each):
                found.append(each)
        except psutil.NoSuchProcess:
            continue
    return found
