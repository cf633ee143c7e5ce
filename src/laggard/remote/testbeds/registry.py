"""Registry of the remote testbeds: one import and one entry per testbed."""

from __future__ import annotations

from collections.abc import Mapping

from laggard.remote.testbeds.chameleon import ChameleonTestbed
from laggard.remote.testbeds.g5k import G5kTestbed
from laggard.remote.testbeds.iotlab import IotlabTestbed
from laggard.remote.testbeds.remote_testbed import RemoteTestbed
from laggard.remote.testbeds.ssh import SshTestbed

_TESTBEDS: tuple[type[RemoteTestbed], ...] = (
    ChameleonTestbed,
    G5kTestbed,
    IotlabTestbed,
    SshTestbed,
)

REMOTE_TESTBEDS: Mapping[str, type[RemoteTestbed]] = {each.name: each for each in _TESTBEDS}
"""Remote testbeds by the name that `--on` and `run.json` use."""
