"""Prerequisites of a local run, tested by their use before anything starts."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
import sys
from pathlib import Path

from laggard.core.errors import PrerequisiteError
from laggard.core.process.termination_signals import TERMINATION_SIGNALS
from laggard.layers_services.local import sandbox

TUN = Path("/dev/net/tun")
# Constants of linux/if_tun.h; the flags are IFF_TUN | IFF_NO_PI.
_TUNSETIFF = 0x400454CA
_IFF_TUN_WITHOUT_HEADER = 0x1001


def check_prerequisites(need_tun: bool) -> None:
    """Enter a sandbox and, if links are emulated in user space, create a TUN device in it.

    Args:
        need_tun: True if TUN devices will be needed

    Raises:
        PrerequisiteError: something is missing; the error carries the command that grants it
        DeploymentError: the calling process has several threads
        KeyboardInterrupt: a signal of the user ended the check
    """
    if not sys.platform.startswith("linux"):
        raise PrerequisiteError(
            f"the local testbed requires Linux namespaces, and this system is {sys.platform}",
            "use Linux",
        )
    if need_tun and not TUN.exists():
        raise no_tun(errno.ENOENT, TUN)
    status = sandbox.run_in_sandbox(lambda: _make_tun(TUN) if need_tun else 0)
    if status - 128 in TERMINATION_SIGNALS:
        # The sandbox received the user's signal; its status is no number of an error.
        raise KeyboardInterrupt(signal.Signals(status - 128).name)
    if need_tun and status:
        raise no_tun(status, TUN)
    if status:
        raise PrerequisiteError(
            f"an empty sandbox ended with status {status}", "run Laggard outside the container"
        )


def no_tun(number: int, device: Path) -> PrerequisiteError:
    """Return the error for an unusable TUN device, by the kernel's error number."""
    missing = f"the userspace link emulator needs {device}: {os.strerror(number)}"
    grants = {
        errno.ENOENT: f"sudo modprobe tun (in a container: `--device {device}`)",
        errno.ENODEV: "sudo modprobe tun",
        errno.ENXIO: "sudo modprobe tun",
        errno.EACCES: f"sudo chmod 0666 {device}",
    }
    return PrerequisiteError(
        missing,
        grants.get(number, f"run the container with `--device {device} --cap-add NET_ADMIN`"),
    )


def _make_tun(device: Path) -> int:
    """Create a TUN device and return 0, or the kernel's error number."""
    try:
        with device.open("r+b", buffering=0) as file:
            fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", b"probe", _IFF_TUN_WITHOUT_HEADER))
    except OSError as error:
        return error.errno or errno.EIO
    return 0
