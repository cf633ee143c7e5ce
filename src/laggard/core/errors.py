"""Every exception that Laggard raises on purpose.

    LaggardError                    exit status 1
    ├── InputError                  exit status 2: the user's input cannot be used
    │   ├── ScenarioError           one or more located problems in scenario files
    │   └── RunFolderError          a run folder or trace that does not have its claimed format
    │       ├── FileReadError       a file that is missing, too large or not a regular file
    │       └── TraceFormatError    a trace of another tool; carries the file and the place in it
    ├── OutputError                 a file of a run cannot be written, because the disk is full, say
    ├── PrerequisiteError           this machine lacks something; carries the command that grants it
    ├── DeploymentError             hosts could not be reserved, created or prepared
    ├── EmulationError              a constraint could not be applied
    ├── WorkerError                 a worker died or hung; carries its rank, host and log tail
    ├── TransportError              a process of the training does not answer, or is gone
    └── FidelityError               exit status 3: the emulation missed its tolerance

A message gives the value, the rule and the fix. No other exception may reach the user: a traceback
is a bug.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from laggard.core.edits import Edit

EXIT_INTERRUPTED = 130
"""Exit status of a command that a signal ended; shells report SIGINT in the same way."""


class LaggardError(Exception):
    """Root of the tree; `exit_status` is the exit status of the command line."""

    exit_status = 1


class InputError(LaggardError):
    """Input of the user, such as a file or an option, that cannot be used."""

    exit_status = 2


@dataclass(frozen=True)
class Problem:
    """Problem at one place of an input file.

    `line` and `column` count from 1; a line of 0 means that the place is unknown. `edits` are the
    fix as edits of the file, if a program can apply it.
    """

    path: str
    line: int
    column: int
    value: str
    rule: str
    fix: str = ""
    edits: tuple[Edit, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}:{self.column}" if self.line else self.path
        shown = f" {self.value}:" if self.value else ""
        fix = f" — {self.fix}" if self.fix else ""
        return escape_unprintable(f"{where}:{shown} {self.rule}{fix}")


def escape_unprintable(text: str) -> str:
    """Return `text` on one line, with every unprintable character written as an escape.

    Any UTF-8 terminal can show the result.
    """
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode()
        for c in text
    )


class ScenarioError(InputError):
    """Scenario that cannot be run, with every problem found in it."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


class RunFolderError(InputError):
    """Run folder or trace file that does not have its claimed format."""


class FileReadError(RunFolderError):
    """File that is not read: missing, forbidden, too large, or not a regular file.

    Args:
        path: the file.
        reason: description of the problem, with the value and the rule.
        fix: advice for the user.
    """

    def __init__(self, path: str, reason: str, fix: str) -> None:
        self.reason = reason
        self.fix = fix
        super().__init__(escape_unprintable(f"{path}: {reason} — {fix}"))


class TraceFormatError(RunFolderError):
    """Trace of another tool that does not have its claimed format.

    Args:
        path: the file or folder.
        where: place in the file, such as `row 17, column duration`; empty for the whole file.
        reason: description of the problem, with the value and the rule.
        fix: advice for the user.
    """

    def __init__(self, path: str, where: str, reason: str, fix: str) -> None:
        self.path = path
        self.where = where
        self.reason = reason
        self.fix = fix
        super().__init__(
            escape_unprintable(f"{path}:{f' {where}:' if where else ''} {reason} — {fix}")
        )


class OutputError(LaggardError):
    """File of a run that cannot be written."""


class PrerequisiteError(LaggardError):
    """This machine lacks something that the run needs.

    Args:
        missing: description of the missing thing, in one sentence.
        grant: the command or step that grants it.
    """

    def __init__(self, missing: str, grant: str) -> None:
        self.missing = missing
        self.grant = grant
        super().__init__(f"{missing}\n  to fix this: {grant}")


class DeploymentError(LaggardError):
    """Failure to reserve, create or prepare hosts."""


class EmulationError(LaggardError):
    """Constraint of a link or host that could not be applied, or was read back differently."""


class WorkerError(LaggardError):
    """A worker died or makes no progress.

    Args:
        message: description of the event.
        rank: the worker's rank; negative for another process.
        host: the host that it ran on, or the name of the other process.
        log_tail: the last lines of its log.
    """

    def __init__(self, message: str, rank: int, host: str, log_tail: str = "") -> None:
        self.rank = rank
        self.host = host
        self.log_tail = log_tail
        tail = f"\n--- last lines of its log ---\n{log_tail}" if log_tail else ""
        if rank >= 0:  # callers know processes by name, and the name of a rank is "rank R"
            message = f"rank {rank} on {host}: {message.removeprefix(f'rank {rank} ')}"
        else:
            message = f"{host}: {message}"
        super().__init__(message + tail)


class TransportError(LaggardError):
    """Failure of a message: a process of the training does not answer another, or is gone."""


class FidelityError(LaggardError):
    """Difference beyond the tolerance between the requested and the measured continuum."""

    exit_status = 3
