"""SSH session with the transfer program of a node (`node_files.py`), with bounds on its output."""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from laggard.core.errors import DeploymentError, escape_unprintable
from laggard.layers_services.ssh.host_keys import explain_refusal
from laggard.layers_services.ssh.node_files import CHUNK_BYTES, COUNT, TransferRequest

_PROGRAM = Path(__file__).with_name("node_files.py")
_MOST_ERROR_BYTES = 2000
_END_PATIENCE_S = 10.0


class BrokenSessionError(DeploymentError):
    """Session that ended before its time; a new session can continue the transfer."""


def pack_program(program: Path) -> str:
    """Return a Python program as one line of Python, for the command line of an interpreter."""
    packed = base64.b64encode(zlib.compress(program.read_bytes(), 9)).decode("ascii")
    return f'import base64,zlib;exec(zlib.decompress(base64.b64decode("{packed}")))'


def transfer_command(python: str) -> str:
    """Return the shell command that starts the transfer program with a node's interpreter."""
    return shlex.join((python, "-I", "-c", pack_program(_PROGRAM)))


class NodeSession:
    """Process on a node, reached by ssh, of which no more is read than was asked for.

    Args:
        process: the running ssh
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout
        self._errors = b""
        self._reader = threading.Thread(target=self._read_errors, args=(process.stderr,))
        self._reader.daemon = True
        self._reader.start()

    def send_request(self, request: TransferRequest) -> None:
        """Send the request to the transfer program."""
        self.write(json.dumps(request).encode("ascii") + b"\n")

    def write(self, content: bytes) -> None:
        """Send bytes.

        Raises:
            BrokenSessionError: the session has ended
        """
        try:
            self._stdin.write(content)
            self._stdin.flush()
        except OSError as error:
            raise self._broken() from error

    def read(self, count: int) -> bytes:
        """Return exactly so many bytes.

        Raises:
            BrokenSessionError: the session ended earlier
        """
        content = self._stdout.read(count)
        if len(content) < count:
            raise self._broken()
        return content

    def read_count(self) -> int:
        """Return the next number of the stream."""
        count: int = COUNT.unpack(self.read(COUNT.size))[0]
        return count

    def copy_to(self, file: IO[bytes], count: int) -> None:
        """Write the next bytes of the stream to a file."""
        while count > 0:
            content = self._stdout.read1(min(count, CHUNK_BYTES))  # type: ignore[attr-defined]
            if not content:
                raise self._broken()
            file.write(content)
            count -= len(content)

    def read_rest(self, most: int) -> bytes:
        """Return everything until the process ends.

        Raises:
            DeploymentError: it writes more than `most` bytes
            BrokenSessionError: it failed
        """
        self._stdin.close()
        content = self._stdout.read(most + 1)
        if len(content) > most:
            raise DeploymentError(f"it wrote more than {most} bytes")
        if self._process.wait() != 0:
            raise self._broken()
        return content

    def _broken(self) -> BrokenSessionError:
        self._reader.join(_END_PATIENCE_S)
        printed = self._errors.decode(errors="replace")
        if refusal := explain_refusal(printed):
            return BrokenSessionError(refusal)
        lines = printed.split("\n")
        said = " | ".join(escape_unprintable(line.strip()) for line in lines if line.strip())
        return BrokenSessionError(said or "the connection ended")

    def _read_errors(self, stderr: IO[bytes]) -> None:
        with stderr:
            while content := stderr.read1(CHUNK_BYTES):  # type: ignore[attr-defined]
                self._errors = (self._errors + content)[-_MOST_ERROR_BYTES:]


@contextmanager
def open_session(ssh: Sequence[str], command: str, limit_s: float) -> Iterator[NodeSession]:
    """Run a shell command on a machine for the body of a `with`.

    Args:
        ssh: command line of ssh up to the destination
        command: shell command
        limit_s: seconds after which the session is ended
    """
    process = subprocess.Popen(
        (*ssh, command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    # A node that neither sends nor receives would otherwise hold the controller.
    watchdog = threading.Timer(limit_s, process.kill)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield NodeSession(process)
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                _close_quietly(stream)


def _close_quietly(stream: IO[bytes]) -> None:
    try:
        stream.close()
    except OSError:
        # Unsent bytes cannot be flushed to a process that has ended.
        return
