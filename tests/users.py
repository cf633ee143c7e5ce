"""Runs scripts in processes of their own, as root and as an ordinary user.

A sandbox is entered by a fork and must not inherit pytest's libraries and threads, and Ansible's
settings are read once per process, so whatever touches either runs in a fresh interpreter.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import laggard
from laggard.core import linux

NOBODY = 65534
SYSTEM_PYTHON = Path("/usr/bin/python3")
_PACKAGES = Path(laggard.__file__).parent.parent
_SITE = Path(sysconfig.get_paths()["purelib"])


@dataclass(frozen=True)
class Runner:
    """Starts Python scripts as one user; `folder` is writable for that user."""

    user: str
    folder: Path
    command: tuple[str, ...]
    environment: dict[str, str]
    prepare: Callable[[], None] | None
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, script: str, *arguments: str, **options: object) -> subprocess.Popen[str]:
        path = self.folder / f"script{len(list(self.folder.glob('script*.py')))}.py"
        path.write_text(textwrap.dedent(script), encoding="utf-8")
        defaults: dict[str, object] = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "preexec_fn": self.prepare,
        }
        process = subprocess.Popen(  # type: ignore[call-overload]
            [*self.command, str(path), *arguments],
            cwd=self.folder,
            env=self.environment,
            **(defaults | options),
        )
        self.started.append(process)
        return process  # type: ignore[no-any-return]

    def clean_up(self) -> None:
        """End what a failed test left running."""
        for process in self.started:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def run(
        self, script: str, *arguments: str, timeout_s: float = 240.0
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(script, *arguments)
        try:
            output, errors = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def clean_environment(*paths: Path) -> dict[str, str]:
    """This process's environment for a fresh interpreter that looks for modules in `paths`."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("ANSIBLE_", "PYTHON"))
    }
    search = os.pathsep.join(str(path) for path in paths)
    return kept | {"PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore"}


def _runner_as_self(user: str, folder: Path) -> Runner:
    return Runner(user, folder, (sys.executable,), clean_environment(_PACKAGES, folder), None)


def ordinary_user(folder: Path, tun: Path | None = None) -> Runner:
    """A runner that starts scripts as an ordinary user; needs root."""
    version = subprocess.run(
        [SYSTEM_PYTHON, "-c", "import sys; print(sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=False,
    )
    if version.stdout.strip() != str(sys.version_info[:2]):
        pytest.skip(
            f"{SYSTEM_PYTHON} is not Python {sys.version_info[0]}.{sys.version_info[1]}, which the"
            " packages are for"
        )
    repository = _PACKAGES.parent if _PACKAGES.name == "src" else _PACKAGES
    seen_repository, seen_site = folder / "repository", folder / "site"
    seen_packages = seen_repository / _PACKAGES.relative_to(repository)

    def become_nobody() -> None:
        # The originals may lie in folders that are closed to others; a bind mount of this process's
        # own opens them.
        linux.unshare(linux.CLONE_NEWNS)
        linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
        linux.mount(str(repository), str(seen_repository), "", linux.MS_BIND)
        linux.mount(str(_SITE), str(seen_site), "", linux.MS_BIND)
        if tun is not None:
            linux.mount(str(tun), "/dev/net/tun", "", linux.MS_BIND)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)

    for path in (seen_repository, seen_site):
        path.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    environment = clean_environment(seen_packages, seen_site, folder) | {"HOME": "/nonexistent"}
    return Runner("nobody", folder, (str(SYSTEM_PYTHON),), environment, become_nobody)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="laggard-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def _user(folder: Path, name: str) -> Runner:
    if os.geteuid() != 0:
        if name == "root":
            pytest.skip("needs root")
        return _runner_as_self("nobody", folder)
    return _runner_as_self("root", folder) if name == "root" else ordinary_user(folder)


@pytest.fixture(params=["root", "nobody"])
def runner(request: pytest.FixtureRequest, open_folder: Path) -> Iterator[Runner]:
    """Starts scripts as root, then as an ordinary user."""
    user = _user(open_folder, request.param)
    yield user
    user.clean_up()


@contextmanager
def as_self() -> Iterator[Runner]:
    """A runner that starts scripts as whoever runs the tests, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="laggard-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        user = _runner_as_self("self", folder)
        try:
            yield user
        finally:
            user.clean_up()


@pytest.fixture
def own_runner() -> Iterator[Runner]:
    """Starts scripts as whoever runs the tests."""
    with as_self() as user:
        yield user


@pytest.fixture
def nobody_with_tun(open_folder: Path) -> Iterator[Runner]:
    """Starts scripts as an ordinary user who may open the TUN device, as on most distributions."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make a device node")
    if not Path("/dev/net/tun").exists():
        pytest.skip("needs /dev/net/tun")
    node = open_folder / "tun"
    os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(10, 200))
    node.chmod(0o666)
    user = ordinary_user(open_folder, node)
    yield user
    user.clean_up()
