"""What a local run needs of this machine, tried for real before anything starts."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from pathlib import Path

from laggard.core.errors import PrerequisiteError
from laggard.layers_services.local import sandbox

TUN = Path("/dev/net/tun")
_TUNSETIFF = 0x400454CA
_IFF_TUN_WITHOUT_HEADER = 0x1001


def check_prerequisites(need_tun: bool) -> None:
    """Enter a sandbox and, if links will be emulated in user space, make a TUN device in it.

    Args:
        need_tun: whether TUN devices will be needed.

    Raises:
        PrerequisiteError: what is missing, and the command that grants it.
        DeploymentError: the calling process has several threads.
    """
    if not sys.platform.startswith("linux"):
        raise PrerequisiteError(
            f"the local testbed is made of Linux namespaces, and this is {sys.platform}",
            "use Linux",
        )
    if need_tun and not TUN.exists():
        raise no_tun(errno.ENOENT, TUN)
    status = sandbox.run_in_sandbox(lambda: _make_tun(TUN) if need_tun else 0)
    if need_tun and status:
        raise no_tun(status, TUN)
    if status:
        raise PrerequisiteError(
            f"an empty sandbox ended with status {status}", "run Laggard outside the container"
        )


def no_tun(number: int, device: Path) -> PrerequisiteError:
    """The error for a TUN device that cannot be used, by the kernel's error number."""
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
    """0, or the kernel's error number."""
    try:
        with device.open("r+b", buffering=0) as file:
            fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", b"probe", _IFF_TUN_WITHOUT_HEADER))
    except OSError as error:
        return error.errno or errno.EIO
    return 0
