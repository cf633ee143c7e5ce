"""Brings files home from a machine by SFTP, taking up again what a broken connection left half
done.
"""

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
    """What a file on the machine is."""

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
    """Fetch files until all are here as they are there.

    Args:
        machine: its name in the ssh configuration.
        ssh_config: what sftp reads.
        folder: where the files lie on the machine.
        files: by path below `folder`.
        into: local folder that gets the same paths.
        pause: waits so many seconds between attempts.

    Raises:
        DeploymentError: after `ATTEMPTS` attempts some are still missing; what has come stays, and
            so does the rest over there.
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
            f"{machine}: {len(missing)} of {len(files)} files did not come home in {ATTEMPTS}"
            f" attempts ({said}); they still lie in {folder} there: {', '.join(missing[:5])}"
        )


def _is_here(path: Path, file: RemoteFile) -> bool:
    """Whether a file is complete; one that is as long and yet another is removed, as resuming would
    not mend it.
    """
    if not path.exists() or path.stat().st_size < file.size_bytes:
        return False
    with path.open("rb") as content:
        if hashlib.file_digest(content, "sha256").hexdigest() == file.sha256:
            return True
    path.unlink()
    return False


def _run_sftp(machine: str, ssh_config: Path, folder: str, names: list[str], into: Path) -> str:
    """One session that gets all of them; returns what went wrong."""
    lines = []
    for name in names:
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        source, target = f"{folder}/{name}", str(into / name)
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
        return f"nothing after {_LIMIT_S:.0f} s"
    return done.stderr.strip() if done.returncode else ""


def _quote_remote_path(path: str) -> str:
    """A path as sftp's own command line takes it: in quotes, within which glob characters stand for
    themselves.
    """
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'
