"""Why the kernel refused a step of the sandbox, and the command that grants it."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import PrerequisiteError

_CONTAINER = "run the container with `--privileged`, or run Laggard outside the container"


@dataclass(frozen=True)
class KernelSettings:
    """What this kernel's administrator allows; None where the kernel has no such setting.

    Attributes:
        max_user_namespaces: `user.max_user_namespaces`.
        unprivileged_userns_clone: `kernel.unprivileged_userns_clone` (Debian).
        apparmor_restrict: `kernel.apparmor_restrict_unprivileged_userns` (Ubuntu).
        root: whether the caller is root.
    """

    max_user_namespaces: int | None = None
    unprivileged_userns_clone: int | None = None
    apparmor_restrict: int | None = None
    root: bool = False


def read_settings(proc_sys: Path = Path("/proc/sys")) -> KernelSettings:
    """The settings of the running kernel."""
    return KernelSettings(
        _read_number(proc_sys / "user/max_user_namespaces"),
        _read_number(proc_sys / "kernel/unprivileged_userns_clone"),
        _read_number(proc_sys / "kernel/apparmor_restrict_unprivileged_userns"),
        os.geteuid() == 0,
    )


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def explain_refusal(step: str, number: int, settings: KernelSettings) -> PrerequisiteError:
    """The error to show when the kernel refuses a step of setting up the sandbox.

    Args:
        step: what was attempted, such as `new user namespace` or `mount /proc`.
        number: the kernel's error number.
        settings: what the kernel's administrator allows.

    Returns:
        An error that names what is missing and the command that grants it.
    """
    missing = f"the kernel refuses the step `{step}` of an isolated sandbox: {os.strerror(number)}"
    return PrerequisiteError(missing, _suggest_grant(number, settings))


def _suggest_grant(number: int, settings: KernelSettings) -> str:
    if settings.max_user_namespaces == 0:
        return "sudo sysctl -w user.max_user_namespaces=15000"
    if not settings.root and settings.unprivileged_userns_clone == 0:
        return "sudo sysctl -w kernel.unprivileged_userns_clone=1"
    if not settings.root and settings.apparmor_restrict == 1:
        return "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    if number in (errno.ENOSPC, errno.EUSERS):
        return (
            "sudo sysctl -w user.max_user_namespaces=15000 user.max_net_namespaces=15000"
            " user.max_pid_namespaces=15000"
        )
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENODEV):
        return (
            "use a kernel with user, PID, network, mount, UTS and IPC namespaces and tmpfs"
            " (CONFIG_NAMESPACES=y)"
        )
    return _CONTAINER if settings.root else f"run as root, or {_CONTAINER}"
