"""Every exception that Laggard raises on purpose.

    LaggardError                    exit status 1
    ├── InputError                  exit status 2: what the user wrote cannot be used
    │   ├── ScenarioError           one or more located problems in scenario files
    │   └── RunFolderError          a run folder or trace that is not what it says
    │       └── TraceFormatError    a trace of another tool; carries the file and the place in it
    ├── PrerequisiteError           this machine lacks something; carries the command that grants it
    ├── DeploymentError             hosts could not be brought up
    ├── EmulationError              a constraint could not be applied
    ├── WorkerError                 a worker died or hung; carries its rank, host and log tail
    ├── TransportError              a process of the training does not answer another, or is gone
    └── FidelityError               exit status 3: the emulation missed its tolerance

A message gives the value, the rule and the fix. Nothing else may reach the user: a traceback is a
bug.
"""

from __future__ import annotations

from dataclasses import dataclass

EXIT_INTERRUPTED = 130
"""The exit status of what a signal has ended, as a shell says it of SIGINT."""


class LaggardError(Exception):
    """Root of the tree; `exit_status` is what the command line returns."""

    exit_status = 1


class InputError(LaggardError):
    """What the user wrote, or pointed at, cannot be used."""

    exit_status = 2


@dataclass(frozen=True)
class Problem:
    """One thing wrong in one place of an input file (`line` and `column` count from 1; 0 is
    unknown).
    """

    path: str
    line: int
    column: int
    value: str
    rule: str
    fix: str = ""

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}:{self.column}" if self.line else self.path
        shown = f" {self.value}:" if self.value else ""
        fix = f" — {self.fix}" if self.fix else ""
        return escape_unprintable(f"{where}:{shown} {self.rule}{fix}")


def escape_unprintable(text: str) -> str:
    """`text` on one line that any UTF-8 terminal shows as it is: the rest is written as escapes."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode()
        for c in text
    )


class ScenarioError(InputError):
    """A scenario that cannot be run, with every problem found in it."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


class RunFolderError(InputError):
    """A run folder or trace file that cannot be read as what it claims to be."""


class TraceFormatError(RunFolderError):
    """A trace of another tool that is not what it says it is.

    Args:
        path: the file or folder.
        where: the place in it, such as `row 17, column duration`; empty where it is the whole.
        reason: what is wrong there, with the value and the rule.
        fix: what to do about it.
    """

    def __init__(self, path: str, where: str, reason: str, fix: str) -> None:
        self.path = path
        self.where = where
        self.reason = reason
        self.fix = fix
        super().__init__(
            escape_unprintable(f"{path}:{f' {where}:' if where else ''} {reason} — {fix}")
        )


class PrerequisiteError(LaggardError):
    """This machine lacks something that the run needs.

    Args:
        missing: what is missing, in one sentence.
        grant: the command or step that grants it.
    """

    def __init__(self, missing: str, grant: str) -> None:
        self.missing = missing
        self.grant = grant
        super().__init__(f"{missing}\n  to grant it: {grant}")


class DeploymentError(LaggardError):
    """Hosts could not be reserved, created or prepared."""


class EmulationError(LaggardError):
    """A link or host constraint could not be applied, or did not read back as applied."""


class WorkerError(LaggardError):
    """A worker died or stopped making progress.

    Args:
        message: what happened.
        rank: the worker's rank.
        host: the host it ran on.
        log_tail: the last lines it wrote.
    """

    def __init__(self, message: str, rank: int, host: str, log_tail: str = "") -> None:
        self.rank = rank
        self.host = host
        self.log_tail = log_tail
        tail = f"\n--- last lines of its log ---\n{log_tail}" if log_tail else ""
        super().__init__(f"rank {rank} on {host}: {message}{tail}")


class TransportError(LaggardError):
    """A process of the training that another speaks to does not answer, or is gone."""


class FidelityError(LaggardError):
    """The emulated continuum, as measured, is not the one that was asked for."""

    exit_status = 3
