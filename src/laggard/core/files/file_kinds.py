"""Names of the kinds of files, for messages."""

from __future__ import annotations

import stat

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFREG: "a regular file",
}


def describe_kind(mode: int) -> str:
    """Return the kind of a file with this mode, such as "a named pipe"."""
    return _KINDS.get(stat.S_IFMT(mode), "a special file")
