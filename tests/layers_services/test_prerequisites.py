from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from laggard.layers_services.local.diagnosis import KernelSettings, explain_refusal, read_settings
from laggard.layers_services.local.prerequisites import TUN, no_tun
from tests.command_line import needs_tun

if TYPE_CHECKING:
    from tests.users import Runner

CHECK = """
    import sys
    from laggard.core.errors import PrerequisiteError
    from laggard.layers_services.local import prerequisites
    try:
        prerequisites.check_prerequisites(need_tun=sys.argv[1] == "tun")
        print("fine")
    except PrerequisiteError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("number", "settings", "grant"),
    [
        (errno.EPERM, KernelSettings(0), "sudo sysctl -w user.max_user_namespaces=15000"),
        (errno.EPERM, KernelSettings(100, 0), "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
        (
            errno.EACCES,
            KernelSettings(100, 1, 1),
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        (errno.ENOSPC, KernelSettings(100, 1, 0), "user.max_net_namespaces=15000"),
        (errno.EINVAL, KernelSettings(None), "CONFIG_NAMESPACES=y"),
        (errno.EPERM, KernelSettings(100, root=True), "--privileged"),
        (errno.EPERM, KernelSettings(100), "run as root"),
    ],
)
def test_what_grants_a_refused_step(number: int, settings: KernelSettings, grant: str) -> None:
    error = explain_refusal("new user namespace", number, settings)
    assert grant in error.grant
    assert os.strerror(number) in error.missing
    assert "`new user namespace`" in error.missing


def test_settings_are_read_from_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "user/max_user_namespaces").write_text("7\n")
    assert read_settings(tmp_path) == KernelSettings(7, None, None, os.geteuid() == 0)
    assert read_settings().max_user_namespaces is None or read_settings().max_user_namespaces >= 0


@pytest.mark.parametrize(
    ("number", "grant"),
    [
        (errno.EACCES, "sudo chmod 0666 /dev/net/tun"),
        (errno.ENOENT, "sudo modprobe tun"),
        (errno.ENODEV, "sudo modprobe tun"),
        (errno.EPERM, "--cap-add NET_ADMIN"),
    ],
)
def test_what_grants_the_tun_device(number: int, grant: str) -> None:
    assert grant in no_tun(number, TUN).grant


def test_this_machine(runner: Runner) -> None:
    assert runner.run(CHECK, "none").stdout == "fine\n"
    if not TUN.exists():
        expected = "sudo modprobe tun"
    elif runner.user == "root" or TUN.stat().st_mode & 0o006 == 0o006:
        expected = "fine"
    else:
        expected = "sudo chmod 0666 /dev/net/tun"
    assert expected in runner.run(CHECK, "tun").stdout


def test_an_ordinary_user_who_may_use_tun(nobody_with_tun: Runner) -> None:
    assert nobody_with_tun.run(CHECK, "tun").stdout == "fine\n"


@needs_tun
def test_an_interrupted_check_is_an_interrupt() -> None:
    """A signal of the user reaches the sandbox, whose status 130 is also the number of an error."""
    script = (
        "from laggard.layers_services.local import prerequisites\n"
        "def interrupted(_): raise KeyboardInterrupt\n"
        "prerequisites._make_tun = interrupted\n"
        "try:\n"
        "    prerequisites.check_prerequisites(need_tun=True)\n"
        "except KeyboardInterrupt as interrupt:\n"
        "    print('interrupted by', interrupt)\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "interrupted by SIGINT\n", done.stderr
