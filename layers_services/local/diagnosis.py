"""Explanation of a step of the sandbox that the kernel refused, and the command to permit it."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import PrerequisiteError

_CONTAINER = "run the container with `--privileged`, or run Laggard outside the container"


@dataclass(frozen=True)
class KernelSettings:
    """Kernel settings that control namespaces; None if this kernel does not have the setting.

    Attributes:
        max_user_namespaces: value of `user.max_user_namespaces`
        unprivileged_userns_clone: value of `kernel.unprivileged_userns_clone` (Debian)
        apparmor_restrict: value of `kernel.apparmor_restrict_unprivileged_userns` (Ubuntu)
        root: True if the caller is root
    """

    max_user_namespaces: int | None = None
    unprivileged_userns_clone: int | None = None
    apparmor_restrict: int | None = None
    root: bool = False


def read_settings(proc_sys: Path = Path("/proc/sys")) -> KernelSettings:
    """Read the settings of the running kernel."""
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
    """Return the error for a step of the sandbox's setup that the kernel refused.

    Args:
        step: name of the step, such as `new user namespace` or `mount /proc`
        number: error number of the kernel
        settings: namespace settings of the kernel

    Returns:
        Error that names the missing permission and the command that grants it.
    """
    missing = f"the kernel refused the step `{step}` of the sandbox's setup: {os.strerror(number)}"
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
            "use a kernel that supports tmpfs and user, PID, network, mount, UTS and IPC namespaces"
            " (CONFIG_NAMESPACES=y)"
        )
    return _CONTAINER if settings.root else f"run as root, or {_CONTAINER}"
