"""The state of a repository, also of one whose configuration names programs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from laggard.core.provenance import git_repository
from laggard.core.provenance.git_repository import read_repository


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "scenario").mkdir()
    (folder / "scenario/workload.yaml").write_text("seed: 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_a_clean_repository_has_its_commit_and_no_diff(repository: Path) -> None:
    state = read_repository(repository / "scenario")
    assert state is not None
    assert (state.commit, state.diff) == (git(repository, "rev-parse", "HEAD"), b"")
    assert state.root == repository


def test_changes_are_a_diff_that_git_can_apply(repository: Path, tmp_path: Path) -> None:
    (repository / "scenario/workload.yaml").write_text("seed: 2\n")
    state = read_repository(repository / "scenario")
    assert state is not None
    assert state.is_complete
    assert state.commit == git(repository, "rev-parse", "HEAD") + "-dirty"
    copy = tmp_path / "copy"
    git(tmp_path, "clone", "-q", str(repository), str(copy))
    (tmp_path / "git.diff").write_bytes(state.diff)
    git(copy, "apply", str(tmp_path / "git.diff"))
    assert (copy / "scenario/workload.yaml").read_text() == "seed: 2\n"


def test_a_diff_is_bounded(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_repository, "MAX_DIFF_BYTES", 1000)
    (repository / "scenario/workload.yaml").write_text("\n".join(map(str, range(99_999))))
    state = read_repository(repository)
    assert state is not None
    assert (len(state.diff), state.is_complete) == (1000, False)
    assert state.commit.endswith("-dirty")


def test_there_is_no_state_outside_a_repository_or_of_untracked_files(
    repository: Path, tmp_path: Path
) -> None:
    assert read_repository(tmp_path) is None
    (repository / "ignored").mkdir()
    (repository / "ignored/__init__.py").touch()
    assert read_repository(repository / "ignored", "__init__.py") is None
    assert read_repository(repository / "scenario", "workload.yaml") is not None


@pytest.mark.parametrize(
    "setting",
    [
        "core.fsmonitor",
        "diff.external",
        "diff.evil.command",
        "diff.evil.textconv",
        "filter.evil.clean",
        "filter.evil.process",
        "core.pager",
    ],
)
def test_no_program_of_a_repository_is_started(
    repository: Path, tmp_path: Path, setting: str
) -> None:
    program, started = tmp_path / "program", tmp_path / "started"
    program.write_text(f"#!/bin/sh\ntouch {started}\ncat\n")
    program.chmod(0o755)
    (repository / ".gitattributes").write_text("*.yaml diff=evil filter=evil\n")
    (repository / ".git/hooks/post-index-change").write_text(program.read_text())
    (repository / ".git/hooks/post-index-change").chmod(0o755)
    git(repository, "config", setting, str(program))
    git(repository, "config", "filter.evil.required", "true")
    (repository / "scenario/workload.yaml").write_text("seed: 3\n")
    state = read_repository(repository)
    assert state is not None
    assert b"+seed: 3" in state.diff
    assert not started.exists()


def test_another_working_tree_of_the_configuration_is_not_read(
    repository: Path, tmp_path: Path
) -> None:
    """A repository could name the home of its reader as its working tree."""
    (tmp_path / "scenario").mkdir()
    (tmp_path / "scenario/workload.yaml").write_text("secret\n")
    git(repository, "config", "core.worktree", str(tmp_path))
    state = read_repository(repository)
    assert state is not None
    assert state.diff == b""


def test_links_are_not_followed(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret content\n")
    (repository / "scenario/workload.yaml").unlink()
    (repository / "scenario/workload.yaml").symlink_to(tmp_path / "secret")
    state = read_repository(repository)
    assert state is not None
    assert b"secret content" not in state.diff
