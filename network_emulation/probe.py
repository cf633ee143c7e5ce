"""Probe of the machine: which link backends work here."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from pathlib import Path
from typing import Literal

from laggard.core.errors import PrerequisiteError

Requested = Literal["auto", "netem", "userspace"]
BackendName = Literal["netem", "userspace"]

_IPV6 = Path("/proc/sys/net/ipv6")
_log = logging.getLogger(__name__)
_LIMIT_S = 20.0
_TRIAL = """\
qdisc add dev lo root handle 1: htb
class add dev lo parent 1: classid 1:11 htb rate 1000kbit
qdisc add dev lo parent 1:11 handle 20: netem delay 1ms limit 1000
filter add dev lo parent 1: protocol ip u32 match ip dst 10.77.0.1 flowid 1:11
"""
"""The commands that the netem backend depends on: HTB, netem and a u32 filter, on the loopback
device."""


def kernel_has_netem() -> bool:
    """Return True if HTB, netem and u32 work here.

    The test runs in a network namespace that ends with it.
    """
    return not netem_refusal()


def netem_refusal() -> str:
    """Return the reason why netem cannot be used here; empty if it can."""
    for program in ("tc", "unshare"):
        if shutil.which(program) is None:
            return f"the program `{program}` is not installed"
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    try:
        tried = subprocess.run(
            ("unshare", *user, "--net", "tc", "-batch", "-"),
            input=_TRIAL, capture_output=True, text=True, timeout=_LIMIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the test of netem failed: {error}"
    return " ".join(tried.stderr.split()) if tried.returncode else ""


def kernel_has_ipv6() -> bool:
    """Return True if hosts can have IPv6 addresses.

    A kernel started with `ipv6.disable=1` gives them none.
    """
    return _IPV6.is_dir()


def choose_backend(requested: Requested) -> BackendName:
    """Return the name of the link backend to use.

    Args:
        requested: `auto` selects netem if the kernel has it, else userspace.

    Raises:
        PrerequisiteError: if netem was requested by name and does not work here.
    """
    if requested == "userspace":
        return "userspace"
    refusal = netem_refusal()
    if not refusal:
        return "netem"
    if requested == "netem":
        grant = "sudo modprobe -a sch_netem sch_htb cls_u32, or choose the userspace link emulator"
        raise PrerequisiteError(
            f"links: netem was requested, but it does not work on this machine ({refusal})", grant
        )
    _log.info("netem does not work on this machine (%s); using the userspace emulator", refusal)
    return "userspace"
