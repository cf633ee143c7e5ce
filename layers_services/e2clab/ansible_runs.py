"""What every run of Ansible through E2Clab or EnOSlib needs: a folder to work in, and the reason of
a failure in one line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from laggard.layers_services.local.provider import ansible_workspace


class _AnsibleRecord(Protocol):
    host: str
    task: str
    status: str
    payload: Mapping[str, object]


@contextlib.contextmanager
def working_in(folder: Path | None) -> Iterator[Path]:
    """Make `folder` the current one while EnOSlib runs, which writes its playbooks there.

    Args:
        folder: writable; relative paths in a user's tasks begin there. None is the sandbox's own.
    """
    if folder is None:
        with ansible_workspace() as workspace:
            yield workspace
        return
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(folder):
        yield folder


def failure_reason(error: BaseException) -> str:
    """What failed on which host, from the records that EnOSlib puts into its errors.

    E2Clab raises its own errors while it handles EnOSlib's, often without a word; so the first of
    the chain that has records speaks, else the innermost one.
    """
    innermost = error
    each: BaseException | None = error
    while each is not None:
        records = _list_records(each)
        if records:
            return "\n".join(_format_failure(record) for record in records)
        innermost = each
        each = each.__cause__ or each.__context__
    return f"{type(innermost).__name__}: {innermost}".removesuffix(": ")


def _list_records(error: BaseException) -> tuple[_AnsibleRecord, ...]:
    wrapped = error.args[0] if error.args else error
    return tuple(getattr(wrapped, "hosts", ()) or getattr(error, "hosts", ()))


def _format_failure(record: _AnsibleRecord) -> str:
    said = [
        str(record.payload[key]).strip() for key in ("msg", "stderr") if record.payload.get(key)
    ]
    return f"{record.host}: task `{record.task}` {record.status.lower()}: {': '.join(said)}"
