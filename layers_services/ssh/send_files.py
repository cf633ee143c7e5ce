"""Files to a machine by sftp(1), resumed where an earlier try broke off.

A file arrives as `<name>.part` and is renamed when it is whole, so a name that is there is a whole
file. Two senders of one file write the same bytes to the same places.
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
    """What travelled to a machine: files, and their bytes less what earlier tries had left
    there.
    """

    machine: str
    files: int
    sent_bytes: int


@dataclass(frozen=True)
class Plan:
    """Lines for one `sftp -b -`, and what they send."""

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
    """Put files into a folder of the home of whoever logs in.

    Args:
        machine: shown in messages.
        access: how to reach it.
        folder: relative to the home; made where it is not there, one level after the other.
        files: what to send, by the name that it gets.
        corrupt: names that are there with a wrong content.

    Raises:
        DeploymentError: it did not succeed in three tries.
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
            "sending files to %s: try %d of %d failed: %s", machine, number, _TRIES, reason.strip()
        )
    said = (
        " | ".join(line.strip() for line in reason.splitlines()[-3:] if line.strip())
        or "sftp gives no reason"
    )
    raise DeploymentError(
        f"{machine}: {len(files)} files could not be sent to ~/{folder} there: {said}"
    )


def plan_sending(
    folder: str,
    files: Mapping[str, Path],
    sizes: Mapping[str, int],
    there: Mapping[str, int],
    corrupt: frozenset[str] = frozenset(),
) -> Plan:
    """What is left to send.

    Args:
        folder: on the machine, relative to the home.
        files: by the name that they get.
        sizes: their sizes in bytes.
        there: sizes of the files that the folder has, in bytes.
        corrupt: names that are there with a wrong content.
    """
    lines: list[str] = []
    count = sent = 0
    for name, path in files.items():
        if not _STORED_NAME.fullmatch(name):
            raise DeploymentError(
                f"{name!r}: a file that is sent has a name of letters, digits and _.+- — rename it"
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
        # Another sender may have renamed it in between; whoever reads the file checks it.
        lines += [f"-chmod 644 {part}", f"-rename {part} {target}"]
        count += 1
        sent += whole - left
    return Plan(tuple(lines), count, sent)


def parse_listing(text: str) -> Mapping[str, int]:
    """Sizes in bytes by name, from what `ls -lan` of sftp(1) prints."""
    matches = (_LISTED.fullmatch(line) for line in text.splitlines())
    return {match[2]: int(match[1]) for match in matches if match is not None}


def quote_path(path: str) -> str:
    """A path as an argument in a batch of sftp(1), in which quotes also keep it from being a
    pattern.

    Raises:
        DeploymentError: it has a line break, which a batch cannot hold.
    """
    if not path.isprintable():
        raise DeploymentError(
            f"{path!r}: sftp cannot be told of a path that is not printable — move it"
        )
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _listing_lines(folder: str) -> tuple[str, ...]:
    parts = folder.split("/")
    levels = ["/".join(parts[: i + 1]) for i in range(len(parts))]
    # Open to read: on nodes root may be the one who reads, and a network file system takes root for
    # a stranger.
    opened = (
        f"-{command} {quote_path(level)}" for level in levels for command in ("mkdir", "chmod 755")
    )
    return (*opened, f"ls -lan {quote_path(folder)}")


def _run_sftp(access: Access, lines: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    command = ("sftp", "-b", "-", *_SETTINGS, *access.sftp_arguments())
    return subprocess.run(
        command, input="\n".join(lines) + "\n", check=False, capture_output=True, text=True
    )
