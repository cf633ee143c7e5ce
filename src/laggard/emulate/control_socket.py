"""Unix socket in the run folder over which commands send requests to a running emulation.

Each connection carries one request and its answers as JSON, one line each. Namespaces are passed
as descriptors with an answer. The kernel identifies the sender (SO_PEERCRED, unix(7)). Other users
are rejected. The process id of a sender in the sandbox is its id in the sandbox's PID namespace.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import ValidationError

from laggard.core.errors import InputError, LaggardError, RunFolderError
from laggard.core.files.input_files import JsonDocument
from laggard.core.run_schema import Record

SOCKET_NAME = "control.sock"
_REQUEST_TIMEOUT_S = 5.0
_REPLY_TIMEOUT_S = 90.0
_MAX_REQUEST_BYTES = 4096
_MAX_DESCRIPTORS = 16
# struct ucred of unix(7): process, user and group id.
_CREDENTIALS = struct.Struct("3i")


class ControlRequest(Record):
    """Request to `enter` a host, `hold` the sender to a CPU share, or list the `links`."""

    action: Literal["enter", "hold", "links"]
    host: str = ""
    interactive: bool = False


@dataclass(frozen=True)
class ControlReply:
    """Answer to a request; `descriptors` are sent with it, and the sender must close them."""

    content: Mapping[str, JsonDocument]
    descriptors: Sequence[int] = ()


ControlHandler = Callable[[ControlRequest, int], Iterator[ControlReply]]
"""Function that answers the request of a process. It is a generator and is resumed after each
answer was sent."""


class ControlSocket:
    """Listening end of the socket, inside the sandbox; use it as a context manager.

    Args:
        folder: run folder
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / SOCKET_NAME
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _open_short_path(folder) as short:
            # The socket file is accessible to its owner only from the beginning.
            umask_before = os.umask(0o177)
            try:
                self._listener.bind(f"{short}/{SOCKET_NAME}")
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
        pid, uid, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        try:
            if uid != os.geteuid():
                raise InputError("this emulation belongs to another user")
            request = ControlRequest.model_validate_json(_read_line(connection, _MAX_REQUEST_BYTES))
            for reply in handler(request, pid):
                _send_reply(connection, reply)
        except (LaggardError, ValidationError) as error:
            _send_reply(
                connection,
                ControlReply({"error": str(error), "status": getattr(error, "exit_status", 1)}),
            )


class RefusedRequestError(LaggardError):
    """Error for a request that the emulation refused."""

    def __init__(self, message: str, status: int) -> None:
        self.exit_status = status
        super().__init__(message)


def send_request(
    folder: Path, request: ControlRequest
) -> tuple[dict[str, JsonDocument], tuple[int, ...]]:
    """Send a request to a running emulation.

    Args:
        folder: run folder of the emulation
        request: request to send

    Returns:
        The answer and the descriptors that came with it, which the caller must close.

    Raises:
        RunFolderError: no emulation is running in this folder
        RefusedRequestError: the emulation refuses the request, with its reason
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_REPLY_TIMEOUT_S)
        try:
            with _open_short_path(folder) as short:
                connection.connect(f"{short}/{SOCKET_NAME}")
            connection.sendall(request.model_dump_json().encode() + b"\n")
            content, descriptors = _receive_reply(connection)
        except OSError as error:
            raise _create_not_running_error(folder) from error
    if "error" in content:
        raise RefusedRequestError(str(content["error"]), int(str(content.get("status", 1))))
    return content, descriptors


def _create_not_running_error(folder: Path) -> RunFolderError:
    return RunFolderError(
        f"{folder}: no emulation is running there — start one with `laggard emulate SCENARIO`"
    )


def _receive_reply(connection: socket.socket) -> tuple[dict[str, JsonDocument], tuple[int, ...]]:
    data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, _MAX_DESCRIPTORS)
    # Received descriptors would stay open if the rest of the answer did not arrive.
    with ExitStack() as undo:
        for descriptor in descriptors:
            undo.callback(os.close, descriptor)
            os.set_inheritable(descriptor, False)
        received = bytearray(data)
        while not received.endswith(b"\n"):
            more = connection.recv(1 << 16)
            if not more:
                raise ConnectionResetError("the answer is incomplete")
            received += more
        content: dict[str, JsonDocument] = json.loads(received)
        undo.pop_all()
    return content, tuple(descriptors)


def _send_reply(connection: socket.socket, reply: ControlReply) -> None:
    data = json.dumps(reply.content).encode() + b"\n"
    # Descriptors are sent with the first bytes; the kernel may accept only some of the data.
    sent = socket.send_fds(connection, [data], list(reply.descriptors)) if reply.descriptors else 0
    connection.sendall(data[sent:])


def _read_line(connection: socket.socket, max_bytes: int) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < max_bytes:
        chunk = connection.recv(max_bytes)
        if not chunk:
            break
        line += chunk
    return bytes(line)


@contextmanager
def _open_short_path(folder: Path) -> Iterator[str]:
    """Yield a short path of the folder, because a socket's address is limited to 107 bytes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
