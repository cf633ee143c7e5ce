"""Folders in which programs are searched."""

from __future__ import annotations

import os

_SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def add_system_folders_to_path() -> None:
    """Let programs such as `tc` be found too, whose folders Debian leaves out of a user's PATH."""
    known = os.environ.get("PATH", os.defpath).split(os.pathsep)
    missing = [folder for folder in _SYSTEM_FOLDERS if folder not in known]
    os.environ["PATH"] = os.pathsep.join([*known, *missing])
