"""Download of files from a machine over SSH, resumed after a broken connection."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Annotated

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from laggard.core.errors import DeploymentError
from laggard.layers_services.ssh.contained_files import ContainedName, open_contained
from laggard.layers_services.ssh.node_files import FileRequest
from laggard.layers_services.ssh.transfer_session import (
    BrokenSessionError,
    NodeSession,
    open_session,
    transfer_command,
)

ATTEMPTS = 5
MOST_FILES = 10_000
"""Most files of one run on one node; a run has a few per rank."""

_FIRST_PAUSE_S = 0.5
_LIMIT_S = 3600.0
_MOST_BYTES = 1 << 44
_log = logging.getLogger(__name__)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class RemoteFile:
    """Size and digest of a file on the machine."""

    size_bytes: Annotated[int, Field(strict=True, ge=0, le=_MOST_BYTES)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


Manifest = Annotated[dict[ContainedName, RemoteFile], Field(max_length=MOST_FILES)]
"""Files of a run on a machine, by path below the run's folder."""

MANIFEST: TypeAdapter[dict[str, RemoteFile]] = TypeAdapter(Manifest)


def fetch_files(
    machine: str,
    ssh_config: Path,
    python: str,
    folder: str,
    files: Mapping[str, RemoteFile],
    into: Path,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Fetch files until all local copies are complete.

    Args:
        machine: name of the machine in the ssh configuration
        ssh_config: configuration file for ssh
        python: path of an interpreter on the machine
        folder: folder of the files on the machine
        files: files to fetch, by path below `folder`
        into: local folder that receives the same paths
        pause: function that waits so many seconds between attempts

    Raises:
        DeploymentError: some files are still missing after `ATTEMPTS` attempts, the local disk has
            no room for them, a name leaves the folder, or the machine sends more than a file has;
            files that arrived are kept, and the others remain on the machine
    """
    into.mkdir(parents=True, exist_ok=True)
    ssh = ("ssh", "-F", str(ssh_config), "-T", machine)
    said = ""
    try:
        _require_room(machine, files, into)
        deadline_s = time.monotonic() + _LIMIT_S
        for attempt in range(ATTEMPTS):
            missing = [name for name, file in files.items() if not _is_here(into, name, file)]
            if not missing:
                return
            if attempt:
                pause(_FIRST_PAUSE_S * 2**attempt)
            try:
                left_s = max(1.0, deadline_s - time.monotonic())
                with open_session(ssh, transfer_command(python), left_s) as session:
                    wanted = {name: files[name] for name in missing}
                    said = _receive_files(session, machine, folder, wanted, into)
            except BrokenSessionError as error:
                said = str(error)
            if said:
                _log.warning("%s: fetching files: %s", machine, said)
        missing = [name for name, file in files.items() if not _is_here(into, name, file)]
    except (OSError, ValueError) as error:
        raise DeploymentError(f"{machine}: its files cannot be stored: {error}") from error
    if missing:
        raise DeploymentError(
            f"{machine}: {len(missing)} of {len(files)} files could not be fetched in {ATTEMPTS}"
            f" attempts ({said}); they remain on the machine in {folder}:"
            f" {', '.join(missing[:5])}"
        )


@dataclass(frozen=True)
class RemoteSource:
    """Folder on a machine from which files are fetched.

    Attributes:
        machine: name of the machine in the ssh configuration
        ssh_config: configuration file for ssh
        python: path of an interpreter on the machine
        folder: folder of the files on the machine
    """

    machine: str
    ssh_config: Path
    python: str
    folder: str


def fetch_whole_file(
    source: RemoteSource, name: str, most_bytes: int, file: IO[bytes], limit_s: float
) -> None:
    """Fetch a file that is replaced now and then, but never changed.

    The machine opens the file once, so its content is that of one version, whatever happens
    meanwhile.

    Args:
        source: folder of the file
        name: name of the file
        most_bytes: bytes of which the file must have fewer
        file: open file that receives the content
        limit_s: seconds after which the transfer is given up

    Raises:
        DeploymentError: the connection broke, or the machine has no such file
    """
    ssh = ("ssh", "-F", str(source.ssh_config), "-T", source.machine)
    request: FileRequest = {"name": name, "offset": 0, "size": most_bytes, "corrupt": False}
    with open_session(ssh, transfer_command(source.python), limit_s) as session:
        session.send_request({"operation": "read", "folder": source.folder, "files": [request]})
        count = session.read_count()
        # The machine announces no more than was requested, so a larger file would be cut.
        if not 0 < count < most_bytes:
            raise DeploymentError(
                f"{source.machine}: the node announces {count} bytes of {name}, which must have"
                f" fewer than {most_bytes}; it is not fetched"
            )
        session.copy_to(file, count)


def _require_room(machine: str, files: Mapping[str, RemoteFile], into: Path) -> None:
    """Refuse files that the local disk cannot hold."""
    needed, free = sum(file.size_bytes for file in files.values()), shutil.disk_usage(into).free
    if needed > free:
        raise DeploymentError(
            f"{machine}: its {len(files)} files have {needed} bytes, and the disk of {into} has"
            f" {free} bytes free — free space, then copy them yourself"
        )


def _is_here(into: Path, name: str, file: RemoteFile) -> bool:
    """Return whether the local copy of a file is complete.

    A copy of full size with wrong content is emptied, because resuming would not repair it.
    """
    with os.fdopen(open_contained(into, name, os.O_RDWR | os.O_CREAT), "r+b") as content:
        size = os.fstat(content.fileno()).st_size
        if size < file.size_bytes:
            return False
        found = hashlib.file_digest(content, "sha256").hexdigest()
        if size == file.size_bytes and found == file.sha256:
            return True
        content.truncate(0)
    return False


def _receive_files(
    session: NodeSession, machine: str, folder: str, files: Mapping[str, RemoteFile], into: Path
) -> str:
    """Receive the missing bytes of files and return a description of what is missing.

    Raises:
        BrokenSessionError: the connection broke
        DeploymentError: the machine sends more bytes than it has announced
    """
    offsets = {name: (into / name).stat().st_size for name in files}
    requests: list[FileRequest] = [
        {"name": name, "offset": offsets[name], "size": file.size_bytes, "corrupt": False}
        for name, file in files.items()
    ]
    session.send_request({"operation": "read", "folder": folder, "files": requests})
    said = ""
    for name, file in files.items():
        count, left = session.read_count(), file.size_bytes - offsets[name]
        if count > left:
            raise DeploymentError(
                f"{machine}: the node announces {count} bytes of {name}, of which {left} are"
                " missing; its data is not fetched"
            )
        if count < left:
            said = f"the machine has {offsets[name] + count} of {file.size_bytes} bytes of {name}"
        descriptor = open_contained(into, name, os.O_WRONLY | os.O_APPEND)
        with os.fdopen(descriptor, "ab") as content:
            session.copy_to(content, count)
    return said
