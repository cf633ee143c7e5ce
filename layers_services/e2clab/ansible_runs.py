"""Working folder and failure messages of Ansible runs through E2Clab or EnOSlib."""

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
    """Make `folder` the current folder while EnOSlib runs, because it writes its playbooks there.

    Args:
        folder: writable folder, to which relative paths in a user's tasks refer; None selects the
            sandbox's own workspace
    """
    if folder is None:
        with ansible_workspace() as workspace:
            yield workspace
        return
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(folder):
        yield folder


def failure_reason(error: BaseException) -> str:
    """Return the failed tasks and their hosts, from the records in EnOSlib's errors.

    E2Clab raises its own errors, often without a message, while it handles those of EnOSlib. The
    first error of the chain that has records is therefore reported, or else the innermost error.
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
