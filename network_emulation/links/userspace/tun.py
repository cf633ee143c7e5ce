"""TUN device in a host's network namespace (Linux Documentation/networking/tuntap.rst).

With a virtio header and segmentation offload, the kernel hands over up to 64 KiB of a TCP stream
in one read and accepts them in one write. That gives 6 Gbit/s with half a core, instead of 2.4
Gbit/s with a whole one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

from laggard.core.errors import EmulationError, PrerequisiteError
from laggard.core.linux import inside_network

DEVICE = "eth0"
CLONE_DEVICE = Path("/dev/net/tun")

_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000
_IFF_VNET_HDR = 0x4000
_TUN_F_CSUM = 0x01
_TUN_F_TSO4 = 0x02
_TUN_F_TSO6 = 0x04


def open_tun(namespace: Path) -> int:
    """Create `eth0` in a namespace and return its non-blocking descriptor.

    The device exists as long as the descriptor is open.

    Raises:
        PrerequisiteError: if the TUN driver is not accessible.
        EmulationError: if the namespace cannot be entered or has an `eth0` already.
    """
    try:
        with inside_network(namespace):
            return _open_here()
    except OSError as error:
        if error.filename == str(CLONE_DEVICE):
            missing = f"cannot open the TUN driver: {error}"
            raise PrerequisiteError(
                missing, f"sudo sh -c 'modprobe tun; chmod 0666 {CLONE_DEVICE}'"
            ) from error
        raise EmulationError(
            f"cannot create the TUN device {DEVICE} in {namespace}: {error}"
        ) from error


def _open_here() -> int:
    descriptor = os.open(CLONE_DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        request = struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR)
        fcntl.ioctl(descriptor, _TUNSETIFF, request)
    except OSError as error:
        os.close(descriptor)
        taken = error.errno == errno.EBUSY
        raise OSError(
            error.errno, "the device exists already" if taken else error.strerror
        ) from error
    return descriptor


def set_segmentation_offload(descriptor: int, wanted: bool) -> None:
    """Let the kernel hand over super-packets, or only packets of at most the MTU.

    It can change while traffic flows.
    """
    segmentation = _TUN_F_TSO4 | _TUN_F_TSO6 if wanted else 0
    fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _TUN_F_CSUM | segmentation)
