"""Upload of files to a machine over SSH, resumed after an interrupted attempt."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import DeploymentError
from laggard.layers_services.machine import Access
from laggard.layers_services.ssh.node_files import CHUNK_BYTES, DONE, FileRequest
from laggard.layers_services.ssh.transfer_session import (
    BrokenSessionError,
    NodeSession,
    open_session,
    transfer_command,
)

_TRIES = 3
_LIMIT_S = 3600.0
_STORED_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", re.ASCII)
_SETTINGS = ("-T", "-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shipment:
    """Files sent to a machine, and their bytes without those that earlier attempts had sent."""

    machine: str
    files: int
    sent_bytes: int


def send_files(
    machine: str,
    access: Access,
    python: str,
    folder: str,
    files: Mapping[str, Path],
    corrupt: frozenset[str] = frozenset(),
) -> Shipment:
    """Upload files into a folder of the login user's home.

    Args:
        machine: name of the machine, for messages
        access: SSH access to the machine
        python: path of an interpreter on the machine
        folder: path relative to the home; missing levels are created
        files: local paths, by the name on the machine
        corrupt: names of files on the machine with wrong content

    Raises:
        DeploymentError: three attempts failed
    """
    for name in files:
        if not _STORED_NAME.fullmatch(name):
            raise DeploymentError(
                f"{name!r}: the name of a sent file may have letters, digits and `_.+-` only —"
                " rename it"
            )
    ssh = ("ssh", *_SETTINGS, *access.ssh_arguments())
    first: Shipment | None = None
    reason = ""
    for number in range(1, _TRIES + 1):
        # Damaged files are replaced in the first attempt and only resumed in later ones.
        damaged = corrupt if first is None else frozenset[str]()
        try:
            with open_session(ssh, transfer_command(python), _LIMIT_S) as session:
                plan = _request_writing(session, machine, folder, files, damaged)
                left = [files[name].stat().st_size - held for name, held in plan.items()]
                first = first or Shipment(machine, sum(map(bool, left)), sum(left))
                _send_contents(session, files, plan)
                return first
        except BrokenSessionError as error:
            reason = str(error)
        _log.warning(
            "sending files to %s: attempt %d of %d failed: %s", machine, number, _TRIES, reason
        )
    raise DeploymentError(
        f"{machine}: {len(files)} files could not be sent to ~/{folder} on the machine: {reason}"
    )


def _request_writing(
    session: NodeSession,
    machine: str,
    folder: str,
    files: Mapping[str, Path],
    corrupt: frozenset[str],
) -> dict[str, int]:
    """Return the number of bytes that the machine has of every incomplete file.

    Raises:
        DeploymentError: the machine has more bytes of a file than the file
    """
    sizes = {name: path.stat().st_size for name, path in files.items()}
    requests: list[FileRequest] = [
        {"name": name, "offset": 0, "size": size, "corrupt": name in corrupt}
        for name, size in sizes.items()
    ]
    session.send_request({"operation": "write", "folder": folder, "files": requests})
    held = {name: session.read_count() for name in files}
    for name, count in held.items():
        if count > sizes[name]:
            raise DeploymentError(
                f"{machine}: the node says that it has {count} bytes of {name}, which has"
                f" {sizes[name]}"
            )
    return held


def _send_contents(
    session: NodeSession, files: Mapping[str, Path], held: Mapping[str, int]
) -> None:
    """Send the missing bytes of files and wait until the machine has completed them."""
    for name, count in held.items():
        with files[name].open("rb") as file:
            file.seek(count)
            while content := file.read(CHUNK_BYTES):
                session.write(content)
    if session.read(len(DONE)) != DONE:
        raise BrokenSessionError("the machine did not confirm that the files are complete")
