"""Commands that read damaged run folders and traces, and a controller that hears hostile nodes.

Every case runs in a process of its own, forked after all imports, with limited memory and time.
There an audit hook of Python records every file that is written, renamed or removed.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from click.testing import CliRunner

from laggard.analysis.report.figures import drawing
from laggard.cli.main import main as command_line
from tests.remote.hostile_messages import HOSTILE_MESSAGES
from tests.run_folder import damaged_inputs
from tests.run_folder.damaged_inputs import Damage, list_broken_promises, list_files

LONGEST_S = 60.0
MOST_BYTES = 4 << 30
"""Time and additional memory after which a case is ended."""
VAGUE = "check the input for damage"
"""Part of the message about an exception that no reader has explained."""

_CHANGING_EVENTS = {
    "os.mkdir": 0, "os.rename": 1, "os.remove": 0, "os.rmdir": 0, "os.symlink": 1, "os.link": 1,
    "os.truncate": 0, "os.chmod": 0, "shutil.rmtree": 0,
}  # fmt: skip
"""Audit events of changes, and which of their arguments is the path."""


@dataclass(frozen=True)
class Case:
    """A case, and what holds after it.

    Attributes:
        what: what was done.
        broken: what does not hold.
        took_s: seconds that it took.
        bytes: memory that it needed beyond that of the process that it was forked from.
        ends: number of commands, by their end.
    """

    what: str
    broken: list[str] = field(default_factory=list)
    took_s: float = 0.0
    bytes: int = 0
    ends: dict[str, int] = field(default_factory=dict)


def try_folders(count: int) -> Iterator[Case]:
    """Damage one file of a run folder, with one seed after the other."""
    drawing.save_figures = lambda *_: ()  # type: ignore[assignment]
    return _try_all(count, damaged_inputs.make_folders, damaged_inputs.damage_folder)


def try_traces(count: int) -> Iterator[Case]:
    """Damage one file of a trace, with one seed after the other."""
    drawing.save_figures = lambda *_: ()  # type: ignore[assignment]
    return _try_all(count, damaged_inputs.make_traces, damaged_inputs.damage_trace)


def try_nodes(count: int) -> Iterator[Case]:
    """Let a node send a hostile message, of as many kinds as there are cases."""
    kinds = tuple(HOSTILE_MESSAGES)
    for number in range(count):
        kind = kinds[number * len(kinds) // count % len(kinds)]

        logging.getLogger("laggard").setLevel(logging.ERROR)

        def hear(folder: Path, kind: str = kind) -> Case:
            return Case(kind, list(HOSTILE_MESSAGES[kind](folder)))

        with tempfile.TemporaryDirectory() as name:
            yield _run_apart(kind, lambda: hear(Path(name)), Path(name))


def _try_all(
    count: int, make: Callable[[Path], None], damage: Callable[[Path, int], Damage]
) -> Iterator[Case]:
    with tempfile.TemporaryDirectory() as name:
        original, place = Path(name) / "original", Path(name) / "all" / "place"
        original.mkdir()
        make(original)
        for seed in range(count):
            shutil.rmtree(place.parent, ignore_errors=True)
            shutil.copytree(original, place)
            done = damage(place, seed)
            what = f"seed {seed}: {done.what}"
            yield _run_apart(what, lambda: _read(what, done, place), place.parent, done.written)  # noqa: B023


def _read(what: str, damage: Damage, place: Path) -> Case:
    """Run the commands, and return what does not hold after them."""
    before = list_files(place.parent, damage.written)
    case = Case(what)
    ends: Counter[str] = Counter()
    for command in damage.commands:
        result = CliRunner().invoke(command_line, [str(each) for each in command])
        case.broken.extend(f"{command[0]}: {each}" for each in list_broken_promises(result))
        ends["vague" if VAGUE in result.output else f"status {result.exit_code}"] += 1
        if VAGUE in result.output:
            case.broken.append(f"{command[0]}: vague: {result.stderr[-200:]!r}")
    after = list_files(place.parent, damage.written)
    changed = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
    case.broken.extend(f"changed: {path}" for path in changed)
    return Case(what, case.broken, ends=dict(ends))


def _run_apart(
    what: str, run: Callable[[], Case], working_folder: Path, written: Sequence[Path] = ()
) -> Case:
    """Run a case in a forked process, within limits, and return its result with its costs."""
    reader, writer = os.pipe()
    began_s = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run_in_child(run, working_folder, written, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        ready = select.select([pipe], [], [], LONGEST_S)[0]
        if not ready:
            os.kill(child, signal.SIGKILL)
        content = pipe.read()
    status = os.waitpid(child, 0)[1]
    took_s = time.monotonic() - began_s
    if not ready:
        return Case(what, [f"not over after {LONGEST_S:.0f} s"], took_s)
    if not content:
        return Case(what, [f"died, status {status}"], took_s)
    found = json.loads(content)
    return Case(what, found["broken"], took_s, found["bytes"], found["ends"])


def _run_in_child(
    run: Callable[[], Case], working_folder: Path, written: Sequence[Path], writer: int
) -> None:
    os.chdir(working_folder)
    limit = _read_memory("VmSize") + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    before, strays = _read_memory("VmRSS"), _record_changes([*written, working_folder])
    try:
        case = run()
        case.broken.extend(f"written: {path}" for path in sorted(strays))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent has to report it
        case = Case("", [f"died of {error!r:.300}"])
    needed = max(0, _read_memory("VmHWM") - before)
    os.write(writer, json.dumps({**vars(case), "bytes": needed}).encode())
    os._exit(0)


def _read_memory(name: str) -> int:
    """Return a size of this process's memory in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def _record_changes(allowed: Sequence[Path]) -> set[str]:
    """Return a set that gets every path outside of some folders at which Python changes a file."""
    strays: set[str] = set()
    folders = tuple(os.path.realpath(each) for each in allowed)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        elif event in _CHANGING_EVENTS:
            path = arguments[_CHANGING_EVENTS[event]]
        else:
            return
        if isinstance(path, str | bytes | os.PathLike):
            file = Path(os.fsdecode(path))
            real = os.path.realpath(file)
            # A relative name may be one within an open folder; files of the kernel are no files.
            if file.is_absolute() and not real.startswith(("/dev/", "/proc/", *folders)):
                strays.add(real)

    sys.addaudithook(hook)
    return strays
