"""Credentials for OpenStack: from the environment, or from a file that is read and never executed.

The file is what OpenStack's web pages call an RC file: lines of `export OS_NAME=value`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.errors import InputError, PrerequisiteError

if TYPE_CHECKING:
    from keystoneauth1.plugin import BaseAuthPlugin
    from keystoneauth1.session import Session

_TIMEOUT_S = 30.0
_MOST_BYTES = 100_000
_FIX = "create an application credential on Chameleon's page and download its RC file"


def read_credentials(rc_file: str, folder: Path) -> Mapping[str, str]:
    """Return the settings whose names begin with OS_.

    Args:
        rc_file: path of the RC file, relative to `folder`; empty for the environment.
        folder: folder of the scenario.

    Raises:
        InputError: the file cannot be read.
    """
    if not rc_file:
        return {name: value for name, value in os.environ.items() if name.startswith("OS_")}
    path = folder / Path(rc_file).expanduser()
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_MOST_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror} — {_FIX}") from error
    return dict(found for line in text.splitlines() if (found := _parse_line(line)) is not None)


def _parse_line(line: str) -> tuple[str, str] | None:
    """Return the setting of a line; None if the line sets none, or computes its value."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return None
    name, equals, value = words[-1].partition("=") if words else ("", "", "")
    is_setting = words[:-1] in ([], ["export"]) and name.startswith("OS_") and equals
    return (name, value) if is_setting and "$" not in value and "`" not in value else None


def open_session(credentials: Mapping[str, str]) -> Session:
    """Return a session whose requests end after a while; nothing is sent.

    Raises:
        PrerequisiteError: there are no credentials, or they lack something.
    """
    from keystoneauth1 import exceptions, loading
    from keystoneauth1.session import Session

    if "OS_AUTH_URL" not in credentials:
        raise PrerequisiteError("there are no credentials for Chameleon Cloud", _FIX)
    try:
        kind = credentials.get("OS_AUTH_TYPE", "password")
        loader: loading.BaseLoader[BaseAuthPlugin] = loading.get_plugin_loader(kind)
        names = {option.dest: f"OS_{option.dest.upper()}" for option in loader.get_options()}
        values = {dest: credentials[name] for dest, name in names.items() if name in credentials}
        return Session(auth=loader.load_from_options(**values), timeout=_TIMEOUT_S)
    except (exceptions.NoMatchingPlugin, exceptions.OptionError) as error:
        raise PrerequisiteError(f"credentials for Chameleon Cloud: {error}", _FIX) from error
