"""Download of files from a machine by SFTP, resumed after a broken connection."""

from __future__ import annotations

import hashlib
import logging
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import DeploymentError

ATTEMPTS = 5
_FIRST_PAUSE_S = 0.5
_LIMIT_S = 3600.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemoteFile:
    """Size and digest of a file on the machine."""

    size_bytes: int
    sha256: str


def fetch_files(
    machine: str,
    ssh_config: Path,
    folder: str,
    files: Mapping[str, RemoteFile],
    into: Path,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Fetch files until all local copies are complete.

    Args:
        machine: name of the machine in the ssh configuration
        ssh_config: configuration file for sftp
        folder: folder of the files on the machine
        files: files to fetch, by path below `folder`
        into: local folder that receives the same paths
        pause: function that waits so many seconds between attempts

    Raises:
        DeploymentError: some files are still missing after `ATTEMPTS` attempts; files that arrived
            are kept, and the others remain on the machine
    """
    for attempt in range(ATTEMPTS):
        missing = [name for name, file in files.items() if not _is_here(into / name, file)]
        if not missing:
            return
        if attempt:
            pause(_FIRST_PAUSE_S * 2**attempt)
        said = _run_sftp(machine, ssh_config, folder, missing, into)
        if said:
            _log.warning("%s: sftp: %s", machine, said)
    missing = [name for name, file in files.items() if not _is_here(into / name, file)]
    if missing:
        raise DeploymentError(
            f"{machine}: {len(missing)} of {len(files)} files could not be fetched in {ATTEMPTS}"
            f" attempts ({said}); they remain on the machine in {folder}:"
            f" {', '.join(missing[:5])}"
        )


def _is_here(path: Path, file: RemoteFile) -> bool:
    """Return whether the local copy of a file is complete.

    A copy of full size with wrong content is removed, because resuming would not repair it.
    """
    if not path.exists() or path.stat().st_size < file.size_bytes:
        return False
    with path.open("rb") as content:
        if hashlib.file_digest(content, "sha256").hexdigest() == file.sha256:
            return True
    path.unlink()
    return False


def _run_sftp(machine: str, ssh_config: Path, folder: str, names: list[str], into: Path) -> str:
    """Fetch files in one session and return its error message; empty after a success."""
    lines = []
    for name in names:
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        source, target = f"{folder}/{name}", str(into / name)
        # `-` continues with the next file after an error, `-a` resumes a partial copy.
        lines.append(f"-get -a {_quote_remote_path(source)} {_quote_remote_path(target)}")
    words = ["sftp", "-F", str(ssh_config), "-q", "-b", "-", machine]
    try:
        done = subprocess.run(
            words,
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the transfer did not end within {_LIMIT_S:.0f} s"
    return done.stderr.strip() if done.returncode else ""


def _quote_remote_path(path: str) -> str:
    """Quote a path for an sftp command; glob characters within quotes are literal."""
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'
