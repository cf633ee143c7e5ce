"""Checks of the process at the other end of a control socket, and of the socket's file.

The kernel says who listens and who connects (SO_PEERCRED, unix(7)), in the ids of the reader's
namespaces. Only an emulation of the caller's own user is used: a command that root starts must not
obey a process of another user.
"""

from __future__ import annotations

import os
import pwd
import shlex
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import InputError

# struct ucred of unix(7): process, user and group id.
_CREDENTIALS = struct.Struct("3i")
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class Peer:
    """Process that listens on, or has connected to, a Unix socket.

    Attributes:
        pid: process id in the reader's PID namespace; 0 if it has none there.
        uid: user id in the reader's user namespace.
    """

    pid: int
    uid: int


def read_peer(connection: socket.socket) -> Peer:
    """Return the process at the other end of a connection."""
    pid, uid, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return Peer(pid, uid)


def require_accepted_sender(peer: Peer) -> None:
    """Accept requests of the emulation's own user and of root only.

    In the sandbox of an ordinary user, that user is root and every other user has the overflow id.

    Raises:
        InputError: another user has connected
    """
    if peer.uid not in {os.geteuid(), 0}:
        raise InputError(
            "this emulation belongs to another user, and only its user may send requests — start"
            " one of your own with `laggard emulate SCENARIO`"
        )


def require_own_server(peer: Peer, folder: Path) -> None:
    """Require the answering process to be of the caller's user.

    Raises:
        InputError: another user's process listens on the socket
    """
    if peer.uid != os.geteuid():
        raise _create_foreign_error(folder, "its emulation is run by", peer.uid)


def forbid_writing_by_others(descriptor: int) -> None:
    """Take the right to write to an open folder from everyone but its owner."""
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & _WRITABLE_BY_OTHERS:
        os.fchmod(descriptor, mode & ~_WRITABLE_BY_OTHERS)


def require_own_folder(descriptor: int, folder: Path) -> None:
    """Require an open run folder to be of the caller's user, and not writable by others.

    Raises:
        InputError: others could have put their own socket there
    """
    _require_own(os.fstat(descriptor), folder, folder)


def require_own_socket(descriptor: int, name: str, folder: Path) -> None:
    """Require the socket file in an open run folder to be of the caller's user.

    Raises:
        InputError: it is another user's, writable by others, or not a socket
        FileNotFoundError: there is no such file
    """
    found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    if not stat.S_ISSOCK(found.st_mode):
        raise InputError(
            f"{folder / name}: not a socket, so no emulation listens there — remove it, and start"
            " one with `laggard emulate SCENARIO`"
        )
    _require_own(found, folder / name, folder)


def _require_own(found: os.stat_result, path: Path, folder: Path) -> None:
    if found.st_uid != os.geteuid():
        raise _create_foreign_error(folder, f"{path.name} is owned by", found.st_uid)
    if found.st_mode & _WRITABLE_BY_OTHERS:
        raise InputError(
            f"{path}: mode {stat.S_IMODE(found.st_mode):04o} lets other users write, and they could"
            f" answer instead of the emulation — run: chmod go-w {shlex.quote(str(path))}"
        )


def _create_foreign_error(folder: Path, what: str, uid: int) -> InputError:
    name = _name_user(uid)
    return InputError(
        f"{folder}: {what} {name}, and you are {_name_user(os.geteuid())}: only emulations of your"
        f" own user are used — run this command as {name}, or start an emulation of your own with"
        " `laggard emulate SCENARIO`"
    )


def _name_user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (user id {uid})"
    except KeyError:
        return f"user id {uid}"
