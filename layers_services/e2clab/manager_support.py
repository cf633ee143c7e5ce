"""Support of E2Clab's managers by the testbeds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ManagerSupport:
    """Features of a testbed that E2Clab's managers need.

    Attributes:
        testbed: name of the testbed
        own_machines: True if every host is a machine of its own, on which a manager may install
        kwollect: True if kwollect measures the hosts
        docker_cache: True if the hosts can reach docker-cache.grid5000.fr
    """

    testbed: str
    own_machines: bool = False
    kwollect: bool = False
    docker_cache: bool = False


LOCAL = ManagerSupport("local")
SSH = ManagerSupport("ssh", own_machines=True)
G5K = ManagerSupport("g5k", own_machines=True, kwollect=True, docker_cache=True)
