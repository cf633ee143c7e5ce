"""Unix socket in the run folder over which commands send requests to a running emulation.

Each connection carries one request and its reply as JSON, one line each. Namespaces are passed as
descriptors with a reply. Each side checks the user of the other one (see `control_peer`). The
process id of a sender in the sandbox is its id in the sandbox's PID namespace.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from pydantic import ValidationError

from laggard.core.errors import LaggardError, RunFolderError
from laggard.core.node_values import NodeMessage, describe_invalid
from laggard.emulate.control_messages import ControlRequest, EnterReply, ErrorReply
from laggard.emulate.control_peer import (
    Peer,
    forbid_writing_by_others,
    read_peer,
    require_accepted_sender,
    require_own_folder,
    require_own_server,
    require_own_socket,
)
from laggard.layers_services.local.held_command import SOCKET_NAME
from laggard.layers_services.local.joining import NAMESPACE_COUNT, require_own_namespaces

_REQUEST_TIMEOUT_S = 5.0
_REPLY_TIMEOUT_S = 90.0
_MAX_REQUEST_BYTES = 8192
_MAX_REPLY_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 16
# More than a reply may have, so that one with too many is noticed.
_MAX_DESCRIPTORS = 16
Reply = TypeVar("Reply", bound=NodeMessage)


@dataclass(frozen=True)
class ControlReply:
    """Reply to a request; `descriptors` are sent with it, and the sender must close them."""

    message: NodeMessage
    descriptors: Sequence[int] = ()


ControlHandler = Callable[[ControlRequest, int], Iterator[ControlReply]]
"""Function that answers the request of a process. It is a generator and is resumed after each
reply was sent."""


class ControlSocket:
    """Listening end of the socket, inside the sandbox; use it as a context manager.

    Other users lose the right to write to the run folder, because they could replace the socket.

    Args:
        folder: run folder
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / SOCKET_NAME
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _open_folder(folder) as descriptor:
            # The socket file is accessible to its owner only from the beginning.
            umask_before = os.umask(0o177)
            try:
                forbid_writing_by_others(descriptor)
                self._listener.bind(_shorten(descriptor))
            except OSError as error:
                self._listener.close()
                raise RunFolderError(
                    f"{self._path}: the control socket cannot be created ({error.strerror}) —"
                    " choose another folder with --runs"
                ) from error
            finally:
                os.umask(umask_before)
        self._listener.listen(64)

    def serve(self, timeout_s: float, handler: ControlHandler) -> None:
        """Wait at most `timeout_s` seconds for a request and answer it.

        Errors are reported to the sender of the request.
        """
        if not select.select([self._listener], [], [], timeout_s)[0]:
            return
        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(_REQUEST_TIMEOUT_S)
            try:
                self._handle_connection(connection, handler)
            except (TimeoutError, BrokenPipeError, ConnectionResetError):
                return  # the sender has closed the connection

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._listener.close()
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _handle_connection(connection: socket.socket, handler: ControlHandler) -> None:
        try:
            peer = read_peer(connection)
            # Closing a connection with unread data would discard the refusal.
            line = _read_line(connection, _MAX_REQUEST_BYTES, _REQUEST_TIMEOUT_S)
            require_accepted_sender(peer)
            request = ControlRequest.model_validate_json(line)
            for reply in handler(request, peer.pid):
                _send_reply(connection, reply)
        except ValidationError as error:
            message = f"the request is not valid: {describe_invalid(error)}"
            _send_reply(connection, ControlReply(ErrorReply(error=message, status=2)))
        except LaggardError as error:
            refusal = ErrorReply(error=str(error), status=error.exit_status)
            _send_reply(connection, ControlReply(refusal))


class RefusedRequestError(LaggardError):
    """Error for a request that the emulation refused."""

    def __init__(self, message: str, status: int) -> None:
        self.exit_status = status
        super().__init__(message)


class InvalidReplyError(LaggardError):
    """Error for a reply that does not have the type or the bounds of a reply of Laggard's."""


def send_request(folder: Path, request: ControlRequest, expected: type[Reply]) -> Reply:
    """Send a request to a running emulation and return its reply.

    Args:
        folder: run folder of the emulation
        request: request to send
        expected: type of the reply

    Raises:
        RunFolderError: no emulation is running in this folder
        InputError: the folder or the emulation is another user's
        InvalidReplyError: the reply is not one of Laggard's
        RefusedRequestError: the emulation refuses the request, with its reason
    """
    with ExitStack() as undo:
        reply, descriptors, _ = _exchange(folder, request, expected, undo)
        _require_descriptors(folder, descriptors, 0)
    return reply


def request_entry(folder: Path, host: str) -> tuple[EnterReply, tuple[int, ...]]:
    """Request the namespaces of a host, and check that they are those of the answering process.

    Args:
        folder: run folder of the emulation
        host: name of the host, or a pattern that matches only it

    Returns:
        The reply, and descriptors for `enter_namespaces`, which closes them.

    Raises:
        DeploymentError: the namespaces are not those of a sandbox of the caller's user
        LaggardError: as for `send_request`
    """
    with ExitStack() as undo:
        request = ControlRequest(action="enter", host=host)
        reply, descriptors, peer = _exchange(folder, request, EnterReply, undo)
        _require_descriptors(folder, descriptors, NAMESPACE_COUNT)
        require_own_namespaces(descriptors, peer.pid)
        undo.pop_all()
    return reply, descriptors


def _exchange(
    folder: Path, request: ControlRequest, expected: type[Reply], undo: ExitStack
) -> tuple[Reply, tuple[int, ...], Peer]:
    """Send a request and receive the reply; `undo` closes the descriptors that come with it."""
    try:
        with _connect(folder) as connection:
            peer = read_peer(connection)
            require_own_server(peer, folder)
            connection.sendall(request.model_dump_json().encode() + b"\n")
            line, descriptors = _receive_reply(connection, undo)
    except OSError as error:
        raise _create_not_running_error(folder) from error
    return _parse_reply(folder, line, expected), descriptors, peer


@contextmanager
def _connect(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_REPLY_TIMEOUT_S)
        with _open_folder(folder) as descriptor:
            require_own_folder(descriptor, folder)
            require_own_socket(descriptor, SOCKET_NAME, folder)
            connection.connect(_shorten(descriptor))
        yield connection


def _create_not_running_error(folder: Path) -> RunFolderError:
    return RunFolderError(
        f"{folder}: no emulation is running there — start one with `laggard emulate SCENARIO`"
    )


def _create_invalid_error(folder: Path, reason: str) -> InvalidReplyError:
    return InvalidReplyError(
        f"{folder}: the emulation's reply is not valid ({reason}); it may be of another version of"
        " Laggard — end it, and start it again with `laggard emulate SCENARIO`"
    )


def _parse_reply(folder: Path, line: bytes, expected: type[Reply]) -> Reply:
    if len(line) > _MAX_REPLY_BYTES:
        raise _create_invalid_error(folder, f"it is longer than {_MAX_REPLY_BYTES} bytes")
    try:
        if line.startswith(b'{"error":'):
            refusal = ErrorReply.model_validate_json(line)
            raise RefusedRequestError(refusal.error, refusal.status)
        return expected.model_validate_json(line)
    except ValidationError as error:
        raise _create_invalid_error(folder, describe_invalid(error)) from error


def _require_descriptors(folder: Path, descriptors: Sequence[int], count: int) -> None:
    if len(descriptors) != count:
        raise _create_invalid_error(
            folder, f"{len(descriptors)} descriptors came with it, and {count} belong to it"
        )


def _receive_reply(connection: socket.socket, undo: ExitStack) -> tuple[bytes, tuple[int, ...]]:
    data, descriptors, _, _ = socket.recv_fds(connection, _CHUNK_BYTES, _MAX_DESCRIPTORS)
    for descriptor in descriptors:
        undo.callback(os.close, descriptor)
        os.set_inheritable(descriptor, False)
    return _read_line(connection, _MAX_REPLY_BYTES, _REPLY_TIMEOUT_S, data), tuple(descriptors)


def _send_reply(connection: socket.socket, reply: ControlReply) -> None:
    data = reply.message.model_dump_json().encode() + b"\n"
    # Descriptors are sent with the first bytes; the kernel may accept only some of the data.
    sent = socket.send_fds(connection, [data], list(reply.descriptors)) if reply.descriptors else 0
    connection.sendall(data[sent:])


def _read_line(
    connection: socket.socket, max_bytes: int, timeout_s: float, beginning: bytes = b""
) -> bytes:
    """Read one line, or one byte more than `max_bytes`, within `timeout_s` seconds in all.

    Raises:
        ConnectionResetError: the connection ended before the line
        TimeoutError: the line was not complete in time
    """
    line = bytearray(beginning)
    deadline = time.monotonic() + timeout_s
    while not line.endswith(b"\n") and len(line) <= max_bytes:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError("the line is incomplete")
        connection.settimeout(remaining_s)
        chunk = connection.recv(min(_CHUNK_BYTES, max_bytes + 1 - len(line)))
        if not chunk:
            raise ConnectionResetError("the line is incomplete")
        line += chunk
    return bytes(line)


@contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _shorten(descriptor: int) -> str:
    """Return a short path of the socket, because a socket's address is limited to 107 bytes."""
    return f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
