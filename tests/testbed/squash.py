"""A view of a folder in which root can make nothing, as on an NFS share with `root_squash`.

The view is an idmapped mount (mount_setattr(2)) in which user and group 0 do not exist, so whatever
root would create has no owner and is refused (EOVERFLOW, where NFS says EACCES). Unlike over NFS,
root still reads everything and overwrites what exists.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import time
from pathlib import Path

_OPEN_TREE = 428
_MOVE_MOUNT = 429
_MOUNT_SETATTR = 442
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 0x1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOUNT_ATTR_IDMAP = 0x00100000
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_EVERYBODY_BUT_ROOT = f"1 1 {2**32 - 2}"

_libc = ctypes.CDLL(None, use_errno=True)


def show_without_root(folder: Path, place: Path) -> None:
    """Mount such a view of `folder` on the folder `place`.

    Raises:
        OSError: the kernel or the file system has no idmapped mounts.
    """
    people = _people()
    try:
        flags = ctypes.c_uint(_OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC)
        tree = _call(_OPEN_TREE, _AT_FDCWD, str(folder).encode(), flags)
        try:
            attributes = struct.pack("QQQQ", _MOUNT_ATTR_IDMAP, 0, 0, people)
            size = ctypes.c_size_t(len(attributes))
            _call(_MOUNT_SETATTR, tree, b"", ctypes.c_uint(_AT_EMPTY_PATH), attributes, size)
            flags = ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH)
            _call(_MOVE_MOUNT, tree, b"", _AT_FDCWD, str(place).encode(), flags)
        finally:
            os.close(tree)
    finally:
        os.close(people)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), f"system call {number}")
    return result


def _people() -> int:
    """A descriptor of a user namespace with everybody but root in it."""
    own = Path("/proc/self/ns/user").readlink()
    process = subprocess.Popen(["unshare", "--user", "sleep", "60"])
    inside = Path(f"/proc/{process.pid}")
    try:
        while (inside / "ns/user").readlink() == own:
            time.sleep(0.005)
        for kind in ("uid_map", "gid_map"):
            (inside / kind).write_text(_EVERYBODY_BUT_ROOT, encoding="ascii")
        return os.open(inside / "ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        process.kill()
        process.wait()
