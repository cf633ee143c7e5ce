"""SSH host keys: which keys are accepted, where they are recorded, and what a refusal means.

Every `ssh -o` setting about host keys is made here. There are two rules:

- Machines of an inventory keep their keys. The first contact is recorded in the user's own
  known-hosts file, and ssh refuses every other key afterwards.
- Machines of a reservation get new keys with every system that is deployed on them. The first
  contact is recorded in a file of that reservation, in its run folder. ssh refuses every other key
  until the reservation ends, and a later reservation of the same machine starts anew.

A jump host belongs to no reservation. For it, ssh uses the user's own known-hosts file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from laggard.core.errors import InputError, escape_unprintable
from laggard.core.files.output_files import write_text

KNOWN_AFTER_FIRST_CONTACT = "StrictHostKeyChecking=accept-new"
"""Setting of ssh that records an unknown key and refuses a key that differs from the record."""

RESERVATION_FILE = "reservation_known_hosts"
"""Name of a reservation's known-hosts file in the run folder."""

INVENTORY_RULE = (
    "accepted at first contact and recorded in your known-hosts file; a different key is refused"
)
RESERVATION_RULE = (
    "Grid'5000's API publishes none; accepted at first contact within this run and recorded in its"
    " run folder; a different key is refused until the run ends"
)

# ssh expands or interprets these characters in paths, and Ansible a brace. Only `%` has an escape.
_SPECIAL_IN_PATHS = '"\\${'
_MOST_SHOWN = 200
_MOST_PATH = 4096
_CHANGED = re.compile(r"Host key for (\S+) has changed and you have requested strict checking")
_OFFENDING = re.compile(r"Offending \S+ key in ([^\r\n]+):(\d+)\s*$", re.MULTILINE)
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_REFUSED = "Host key verification failed"


@dataclass(frozen=True)
class ReservationKeys:
    """Known-hosts file of one reservation.

    Attributes:
        path: the file; only its owner may read it.
        deployed: True if the reservation deploys its own system, so that keys which the testbed
            lists for the standard system do not apply.
    """

    path: Path
    deployed: bool = False

    @classmethod
    def create(cls, run_folder: Path, *, deployed: bool = False) -> Self:
        """Create the empty file in a run folder.

        Raises:
            InputError: ssh would misinterpret the path
        """
        path = run_folder.resolve() / RESERVATION_FILE
        if not str(path).isprintable() or set(str(path)) & set(_SPECIAL_IN_PATHS):
            raise InputError(
                f"{escape_unprintable(str(run_folder))}: ssh would misinterpret this path of a run"
                f" folder, which must have none of {_SPECIAL_IN_PATHS} and no control character —"
                " choose another folder with --runs"
            )
        keys = cls(path, deployed)
        keys.forget()
        return keys

    @property
    def options(self) -> tuple[str, ...]:
        """Return the `ssh -o` settings for machines of the reservation."""
        escaped = str(self.path).replace("%", "%%")
        # Keys that the testbed lists in the system's file are used; they are of its own system.
        system_file = ("GlobalKnownHostsFile=/dev/null",) if self.deployed else ()
        return (
            KNOWN_AFTER_FIRST_CONTACT,
            f'UserKnownHostsFile="{escaped}"',
            *system_file,
            "LogLevel=ERROR",
        )

    def forget(self) -> None:
        """Remove all recorded keys, because the machines were reinstalled."""
        write_text(self.path, "", mode=0o600)


def explain_refusal(output: str) -> str | None:
    """Return the reason for which ssh refused a host key; None if it refused none.

    Args:
        output: what ssh printed on standard error
    """
    if _REFUSED not in output:
        return None
    changed = _CHANGED.search(output)
    if changed is None:
        return (
            "ssh knows no host key of the jump host, and a jump host's key is not accepted"
            " automatically — connect to the jump host once with ssh, compare the fingerprint with"
            " the published one, then run again"
        )
    name, place = changed[1][:_MOST_SHOWN], _OFFENDING.search(output)
    path, line = (place[1][-_MOST_PATH:], place[2]) if place else ("", "")
    fingerprint = _FINGERPRINT.search(output)
    record = f", recorded in {path}, line {line}" if path else ""
    rule = f"the key of the first contact must not change{record}"
    return escape_unprintable(
        f"{name} shows another host key{f' ({fingerprint[0]})' if fingerprint else ''}; {rule}"
        f" — {_format_fix(name, path)}"
    )


def _format_fix(name: str, path: str) -> str:
    if Path(path).name == RESERVATION_FILE:
        return (
            "another machine may answer in its place; if you reinstalled the machine yourself,"
            " start a new run, which records the new key"
        )
    where = f' -f "{path}"' if path else ""
    return (
        "another machine may answer in its place; if you reinstalled the machine yourself, run"
        f' ssh-keygen{where} -R "{name}"'
    )
