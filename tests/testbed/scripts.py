"""Scripts on a testbed, each in a fork of one process that has run what they have in common:
importing EnOSlib takes seconds.

A testbed lives in a sandbox, which is entered by a fork and must not inherit pytest's libraries and
threads. So a module's tests share one fresh interpreter. It runs their head once; every script runs
in a fork of it, with what the head defined, in a folder of its own, and ends with one line of JSON.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

from laggard.core import linux
from laggard.layers_services.local import sandbox
from laggard.layers_services.local.forked import end_with, fork_process

REPOSITORY = Path(__file__).resolve().parents[2]
Bed = TypeVar("Bed")


class Scripts(ExitStack):
    """Runs scripts after a head; a context manager that ends their process and removes their
    folders."""

    def __init__(self, head: str) -> None:
        super().__init__()
        # pytest's own temporary folders are closed to others, and their names too long for the
        # sockets of ssh's shared connections.
        folder = tempfile.TemporaryDirectory(prefix="laggard-test-")
        self._folder = Path(self.enter_context(folder))
        self._folder.chmod(0o755)
        self._head = self._folder / "head.py"
        self._head.write_text(textwrap.dedent(head), encoding="utf-8")
        self._process: subprocess.Popen[str] | None = None
        self._count = 0
        self.callback(self._end)

    def __enter__(self) -> Self:
        return self

    def answer(self, script: str, timeout_s: float = 480.0) -> Any:
        """What a script printed on its last line.

        Raises:
            AssertionError: it printed nothing; carries what it complained of.
            TimeoutError: it did not end in time.
        """
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir(mode=0o755)
        (folder / "script.py").write_text(textwrap.dedent(script), encoding="utf-8")
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{folder}\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], timeout_s)[0]:
            self._end()
            raise TimeoutError(f"not done after {timeout_s:g} s:\n{_read(folder / 'errors')}")
        process.stdout.readline()
        printed = _read(folder / "output").splitlines()
        assert printed, _read(folder / "errors") or _read(self._folder / "errors")
        return json.loads(printed[-1])

    def _running(self) -> subprocess.Popen[str]:
        from tests.users import clean_environment  # not for the scripts' process: it imports pytest

        if self._process is None or self._process.poll() is not None:
            self._end()
            home = self._folder / "home"
            home.mkdir(exist_ok=True)
            environment = clean_environment(REPOSITORY, REPOSITORY / "src") | {"HOME": str(home)}
            with (self._folder / "errors").open("a") as errors:
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-c",
                        f"from {__name__} import serve; serve()",
                        str(self._head),
                    ],
                    cwd=self._folder,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with process:  # closes its pipes and waits
                process.kill()


def in_sandbox(
    make: Callable[[], AbstractContextManager[Bed]], look: Callable[[Bed], object]
) -> NoReturn:
    """For scripts: print what `look` says of what `make` makes in a sandbox, and end."""

    def entered() -> int:
        with make() as bed:
            sys.stdout.write(f"{json.dumps(look(bed))}\n")
        return 0

    sys.exit(sandbox.run_in_sandbox(entered))


def serve() -> None:
    """The process of a module's scripts: runs the head, then a script in every folder that it is
    told of."""
    names = {"__name__": "__main__"}
    _execute(Path(sys.argv[1]), names)
    own = os.getpid()
    for line in sys.stdin:
        script = fork_process("running a script")
        if script == 0:
            linux.die_with_parent(own)
            end_with(lambda: _play(Path(line.strip()), names))  # noqa: B023 - the child leaves the loop here
        _, status = os.waitpid(script, 0)
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()


def _play(folder: Path, names: dict[str, Any]) -> int:
    os.chdir(folder)
    for number, name in enumerate((os.devnull, "output", "errors")):
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT)
        os.dup2(descriptor, number)
        os.close(descriptor)
    _execute(folder / "script.py", names)
    return 0


def _execute(path: Path, names: dict[str, Any]) -> None:
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
