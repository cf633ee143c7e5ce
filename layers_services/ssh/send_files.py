"""Upload of files to a machine by sftp(1), resumed after an interrupted attempt.

A file is uploaded as `<name>.part` and renamed when it is complete, so a file without this suffix
is complete. Two senders of one file write the same bytes to the same places.
"""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import DeploymentError
from laggard.layers_services.machine import Access

_TRIES = 3
_PART = ".part"
_STORED_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", re.ASCII)
_LISTED = re.compile(r"-[rwxsStT-]{9}\S*\s+\S+\s+\S+\s+\S+\s+(\d+)\s.*?([^/\s]+)\s*", re.ASCII)
_SETTINGS = ("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shipment:
    """Files sent to a machine, and their bytes without those that earlier attempts had sent."""

    machine: str
    files: int
    sent_bytes: int


@dataclass(frozen=True)
class Plan:
    """Commands for one `sftp -b -`, and the files and bytes that they send."""

    lines: tuple[str, ...]
    files: int
    sent_bytes: int


def send_files(
    machine: str,
    access: Access,
    folder: str,
    files: Mapping[str, Path],
    corrupt: frozenset[str] = frozenset(),
) -> Shipment:
    """Upload files into a folder of the login user's home.

    Args:
        machine: name of the machine, for messages
        access: SSH access to the machine
        folder: path relative to the home; missing levels are created
        files: local paths, by the name on the machine
        corrupt: names of files on the machine with wrong content

    Raises:
        DeploymentError: three attempts failed
    """
    sizes = {name: path.stat().st_size for name, path in files.items()}
    first: Plan | None = None
    reason = ""
    for number in range(1, _TRIES + 1):
        listing = _run_sftp(access, _listing_lines(folder))
        if listing.returncode == 0:
            plan = plan_sending(
                folder,
                files,
                sizes,
                parse_listing(listing.stdout),
                # Damaged files are replaced in the first attempt and only resumed in later ones.
                corrupt if first is None else frozenset(),
            )
            first = first or plan
            done = _run_sftp(access, plan.lines)
            if done.returncode == 0:
                return Shipment(machine, first.files, first.sent_bytes)
            reason = done.stderr
        else:
            reason = listing.stderr
        _log.warning(
            "sending files to %s: attempt %d of %d failed: %s",
            machine,
            number,
            _TRIES,
            reason.strip(),
        )
    said = (
        " | ".join(line.strip() for line in reason.splitlines()[-3:] if line.strip())
        or "sftp gave no reason"
    )
    raise DeploymentError(
        f"{machine}: {len(files)} files could not be sent to ~/{folder} on the machine: {said}"
    )


def plan_sending(
    folder: str,
    files: Mapping[str, Path],
    sizes: Mapping[str, int],
    there: Mapping[str, int],
    corrupt: frozenset[str] = frozenset(),
) -> Plan:
    """Return the commands that send the missing parts of files.

    Args:
        folder: folder on the machine, relative to the home
        files: local paths, by the name on the machine
        sizes: sizes of these files in bytes
        there: sizes of the files in the folder, in bytes
        corrupt: names of files on the machine with wrong content
    """
    lines: list[str] = []
    count = sent = 0
    for name, path in files.items():
        if not _STORED_NAME.fullmatch(name):
            raise DeploymentError(
                f"{name!r}: the name of a sent file may have letters, digits and `_.+-` only —"
                " rename it"
            )
        if there.get(name) == sizes[name] and name not in corrupt:
            continue
        target, part = quote_path(f"{folder}/{name}"), quote_path(f"{folder}/{name}{_PART}")
        if name in there:
            lines.append(f"rm {target}")
        left, whole = there.get(f"{name}{_PART}"), sizes[name]
        if left is None or left > whole or name in corrupt:
            left = 0
            lines.append(f"put {quote_path(str(path))} {part}")
        elif left < whole:
            lines.append(f"reput {quote_path(str(path))} {part}")
        # Errors are ignored (`-`), since another sender may have renamed the file in between. The
        # reader of the file verifies its content.
        lines += [f"-chmod 644 {part}", f"-rename {part} {target}"]
        count += 1
        sent += whole - left
    return Plan(tuple(lines), count, sent)


def parse_listing(text: str) -> Mapping[str, int]:
    """Parse the output of `ls -lan` of sftp(1) into sizes in bytes by name."""
    matches = (_LISTED.fullmatch(line) for line in text.splitlines())
    return {match[2]: int(match[1]) for match in matches if match is not None}


def quote_path(path: str) -> str:
    """Quote a path for a batch of sftp(1); quotes also prevent its use as a pattern.

    Raises:
        DeploymentError: the path has unprintable characters, such as a line break
    """
    if not path.isprintable():
        raise DeploymentError(
            f"{path!r}: sftp does not support paths with unprintable characters — rename or move it"
        )
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _listing_lines(folder: str) -> tuple[str, ...]:
    parts = folder.split("/")
    levels = ["/".join(parts[: i + 1]) for i in range(len(parts))]
    # World-readable, because root may be the reader on nodes, and a network file system treats root
    # as an unknown user.
    opened = (
        f"-{command} {quote_path(level)}" for level in levels for command in ("mkdir", "chmod 755")
    )
    return (*opened, f"ls -lan {quote_path(folder)}")


def _run_sftp(access: Access, lines: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    command = ("sftp", "-b", "-", *_SETTINGS, *access.sftp_arguments())
    return subprocess.run(
        command, input="\n".join(lines) + "\n", check=False, capture_output=True, text=True
    )
