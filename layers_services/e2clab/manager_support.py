"""Support of E2Clab's managers by the testbeds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ManagerSupport:
    """What E2Clab's managers find on a testbed.

    Attributes:
        testbed: name of the testbed.
        own_machines: hosts are machines of their own, on which a manager may install.
        kwollect: kwollect meters the hosts.
        docker_cache: hosts reach docker-cache.grid5000.fr.
    """

    testbed: str
    own_machines: bool = False
    kwollect: bool = False
    docker_cache: bool = False


LOCAL = ManagerSupport("local")
SSH = ManagerSupport("ssh", own_machines=True)
G5K = ManagerSupport("g5k", own_machines=True, kwollect=True, docker_cache=True)
