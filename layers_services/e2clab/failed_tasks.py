"""Failed Ansible tasks: a few lines for the user, and full records for the run's logs.

Records come from nodes and from users' tasks, so their text is escaped. The output of a task with
`no_log` is neither shown nor kept.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from laggard.core.errors import escape_unprintable
from laggard.core.files.output_files import write_text

LOG_NAME = "failed_tasks.jsonl"
"""File of a run's logs with one JSON object per failed task and host."""

_MOST_FAILURES = 3
_MOST_HOSTS = 5
_MOST_LINES = 8
_MOST_CHARACTERS = 300
_NO_REASON = "non-zero return code"
_HIDDEN = "its output is hidden by `no_log`"

Payload = Mapping[str, object]


class AnsibleRecord(Protocol):
    """Result of one task on one host, in EnOSlib's errors."""

    host: str
    task: str
    status: str
    payload: Payload


def find_failed_tasks(error: BaseException) -> tuple[AnsibleRecord, ...]:
    """Return the failed tasks of an error of EnOSlib; empty if it carries none."""
    wrapped = error.args[0] if error.args else error
    return tuple(getattr(wrapped, "hosts", ()) or getattr(error, "hosts", ()))


def format_failed_tasks(records: Sequence[AnsibleRecord]) -> str:
    """Describe failed tasks: task, hosts, command and last lines, equal failures once."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for record in records:
        hosts.setdefault((_format_task(record), _format_details(record)), []).append(record.host)
    shown = [
        f"{_format_hosts(names)}: {task}{details}"
        for (task, details), names in list(hosts.items())[:_MOST_FAILURES]
    ]
    more = len(hosts) - len(shown)
    return "\n".join([*shown, *([f"and {more} more failures"] if more else [])])


def keep_failed_tasks(records: Iterable[AnsibleRecord], log: Path) -> None:
    """Append the full records to a log."""
    lines = [
        json.dumps(
            {
                "host": record.host,
                "task": record.task,
                "status": record.status,
                "payload": {"no_log": True} if _is_hidden(record) else record.payload,
            },
            default=str,
        )
        for record in records
    ]
    before = log.read_text(encoding="utf-8") if log.is_file() else ""
    write_text(log, before + "".join(f"{line}\n" for line in lines))


def _is_hidden(record: AnsibleRecord) -> bool:
    return bool(record.payload.get("_ansible_no_log"))


def _format_hosts(names: Sequence[str]) -> str:
    shown, more = sorted(names)[:_MOST_HOSTS], len(names) - _MOST_HOSTS
    return ", ".join(map(_clean, shown)) + (f" and {more} more hosts" if more > 0 else "")


def _format_task(record: AnsibleRecord) -> str:
    status = record.payload.get("rc")
    failed = f"task `{_clean(record.task)}` {_clean(record.status.lower())}"
    return f"{failed} with exit status {status}" if isinstance(status, int) and status else failed


def _format_details(record: AnsibleRecord) -> str:
    if _is_hidden(record):
        return f"\n  {_HIDDEN}"
    command = _format_command(record.payload)
    lines = _list_last_lines(record.payload)
    return "".join(
        (
            f"\n  command: {command}" if command else "",
            "\n  last lines:" if lines else "",
            *(f"\n    {line}" for line in lines),
        )
    )


def _format_command(payload: Payload) -> str:
    """Return the command line of a task, or else the arguments of its module."""
    command = payload.get("cmd")
    if isinstance(command, list):
        command = shlex.join(map(str, command))
    invocation = payload.get("invocation")
    arguments = invocation.get("module_args") if isinstance(invocation, Mapping) else None
    if not command and isinstance(arguments, Mapping):
        given = {key: value for key, value in arguments.items() if value not in (None, "", [])}
        command = " ".join(f"{key}={value}" for key, value in given.items())
    return _clean(str(command or ""))


def _list_last_lines(payload: Payload) -> list[str]:
    """Return the last lines of a task's output and errors, and Ansible's own message."""
    message = str(payload.get("msg") or "").strip()
    texts = [str(payload.get(key) or "") for key in ("stdout", "stderr")]
    texts += [message] if message != _NO_REASON and message not in texts else []
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    return [_clean(line) for line in lines[-_MOST_LINES:]]


def _clean(text: str) -> str:
    cut = text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."
    return escape_unprintable(cut)
