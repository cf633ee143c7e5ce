"""State of a git repository: its commit, and the changes that are not committed.

A repository may come from a stranger, and its configuration can name programs. Therefore git is
started with arguments only, without hooks, pagers, filters, text conversions, external programs and
network, and only for the working tree that the folder is in. No link is followed.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_DIFF_BYTES = 1 << 20
"""Bytes of a diff that are kept."""

_MAX_ANSWER_BYTES = 1 << 16
_TIMEOUT_S = 10.0
_SAFE_CONFIGURATION = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.pager=cat",
    "protocol.allow=never",
)
_DIFF = (
    "diff",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--ignore-submodules=all",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "HEAD",
    "--",
)


@dataclass(frozen=True)
class RepositoryState:
    """State of a repository.

    Attributes:
        root: folder of the working tree.
        commit: hash of the commit, with `-dirty` if tracked files have changes.
        diff: changes of tracked files against the commit, at most `MAX_DIFF_BYTES` of them.
        is_complete: whether `diff` has all changes.
    """

    root: Path
    commit: str
    diff: bytes
    is_complete: bool


@dataclass(frozen=True)
class _Answer:
    output: bytes
    is_complete: bool
    status: int

    @property
    def line(self) -> str:
        return self.output.decode("utf-8", "backslashreplace").strip()


def find_repository(folder: Path) -> Path | None:
    """Return the working tree that a folder is in; None outside a repository."""
    here = folder.resolve()
    return next((each for each in (here, *here.parents) if (each / ".git").exists()), None)


def read_repository(folder: Path, tracked: str | None = None) -> RepositoryState | None:
    """Read the state of the repository of a folder.

    Args:
        folder: folder in the working tree.
        tracked: name of a file in the folder; without it in the repository, there is no state.

    Returns:
        The state; None outside a repository, without git, or if git cannot read it.
    """
    root, git = find_repository(folder), shutil.which("git")
    if root is None or git is None:
        return None
    if tracked is not None:
        found = _run_git(git, root, ("ls-files", "--error-unmatch", "--", str(folder / tracked)))
        if found.status:
            return None
    commit = _run_git(git, root, ("rev-parse", "--verify", "HEAD"))
    if commit.status or not commit.line:
        return None
    safe = _disable_filters(git, root)
    if safe is None:
        return None
    diff = _run_git(git, root, _DIFF, safe, MAX_DIFF_BYTES)
    suffix = "-dirty" if diff.output or not diff.is_complete else ""
    return RepositoryState(root, commit.line + suffix, diff.output, diff.is_complete)


def _disable_filters(git: str, root: Path) -> Sequence[str] | None:
    """Return settings without the filters of a configuration; None if it cannot be read."""
    pattern = r"^filter\..*\.(clean|smudge|process|required)$"
    found = _run_git(git, root, ("config", "--name-only", "--null", "--get-regexp", pattern))
    # git exits with status 1 if nothing matches.
    if found.status not in (0, 1) or not found.is_complete:
        return None
    keys = [key for key in found.output.decode("utf-8", "replace").split("\0") if key]
    # A value after the first `=` ends a key, so that such a key could not be overridden.
    if any("=" in key or not key.isprintable() for key in keys):
        return None
    return [f"{key}={'false' if key.endswith('.required') else ''}" for key in keys]


def _run_git(
    git: str,
    root: Path,
    arguments: Sequence[str],
    settings: Sequence[str] = (),
    most: int = _MAX_ANSWER_BYTES,
) -> _Answer:
    """Start git in a working tree and read at most so many bytes of its answer."""
    command = [git, "-C", str(root), f"--work-tree={root}", "--no-pager"]
    for setting in (*_SAFE_CONFIGURATION, *settings):
        command += ["-c", setting]
    with subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_create_environment(),
    ) as process:
        assert process.stdout is not None
        try:
            output, is_complete = _read_output(process.stdout.fileno(), most)
        except BaseException:
            process.kill()
            raise
        if not is_complete:
            process.kill()
    return _Answer(output, is_complete, process.returncode)


def _read_output(descriptor: int, most: int) -> tuple[bytes, bool]:
    """Return the output, and whether it ended within the limits of size and time."""
    parts: list[bytes] = []
    size, end_s = 0, time.monotonic() + _TIMEOUT_S
    while size <= most:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, end_s - time.monotonic()))
        if not ready:
            return b"".join(parts), False
        part = os.read(descriptor, 1 << 16)
        if not part:
            return b"".join(parts), True
        parts.append(part)
        size += len(part)
    return b"".join(parts)[:most], False


def _create_environment() -> Mapping[str, str]:
    """Return the environment without variables that change what git does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
