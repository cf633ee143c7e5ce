"""Working folder and failure messages of Ansible runs through E2Clab or EnOSlib."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from laggard.layers_services.e2clab.failed_tasks import (
    find_failed_tasks,
    format_failed_tasks,
    keep_failed_tasks,
)
from laggard.layers_services.local.provider import ansible_workspace

_LOGGER = "enoslib.api"
_RAW = ("Failed hosts:", "Unreachable hosts:")


@contextlib.contextmanager
def working_in(folder: Path | None) -> Iterator[Path]:
    """Make `folder` the current folder while EnOSlib runs, because it writes its playbooks there.

    Args:
        folder: writable folder, to which relative paths in a user's tasks refer; None selects the
            sandbox's own workspace
    """
    with _without_raw_records():
        if folder is None:
            with ansible_workspace() as workspace:
                yield workspace
            return
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.chdir(folder):
            yield folder


def failure_reason(error: BaseException, log: Path | None = None) -> str:
    """Describe the failed tasks of an error: task, hosts, command and last lines.

    E2Clab raises its own errors, often without a message, while it handles those of EnOSlib. The
    first error of the chain that has records is therefore reported, or else the innermost error.

    Args:
        error: the error of E2Clab or EnOSlib
        log: file to which the full records are appended; None keeps none
    """
    innermost = error
    each: BaseException | None = error
    while each is not None:
        records = find_failed_tasks(each)
        if records:
            if log is None:
                return format_failed_tasks(records)
            keep_failed_tasks(records, log)
            return f"{format_failed_tasks(records)}\n  full record: {log}"
        innermost = each
        each = each.__cause__ or each.__context__
    return f"{type(innermost).__name__}: {innermost}".removesuffix(": ")


@contextlib.contextmanager
def _without_raw_records() -> Iterator[None]:
    """Keep EnOSlib's log of raw records off the screen; `failure_reason` describes them."""
    logger = logging.getLogger(_LOGGER)
    logger.addFilter(_is_no_record)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_record)


def _is_no_record(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_RAW)
