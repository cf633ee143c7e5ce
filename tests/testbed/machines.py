"""What carries out the testbed's orders: machines on paper, or nodes that are lent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tests.testbed.nodes import STANDARD_ENVIRONMENT, Boot, Nodes

_VERSION = "2025010112"
# Grid'5000's images of these kinds know its users and mount their homes; `min` and `base` do not.
_WITH_HOME = ("nfs", "big", "std")
_IDLE = Boot(root_key=False, users=False, environment=f"{STANDARD_ENVIRONMENT}-{_VERSION}")


class Machines(Protocol):
    """What is done to nodes as jobs come and go."""

    def open(self, name: str) -> None:
        """Let the user log in."""

    def release(self, names: Sequence[str]) -> None:
        """End everything on nodes, and let nobody in."""

    def deploy(self, names: Sequence[str], environment: str, vlan: str | None) -> None:
        """Bring nodes up with another system, in which root has the user's key."""

    def fail(self, name: str) -> None:
        """Leave a node down."""

    def silence(self, name: str) -> None:
        """Cut a node off."""


class Paper(Machines):
    """Nodes on paper, to which nothing has to be done: for tests of the API alone."""


class Lent:
    """Real stand-in nodes, which begin closed."""

    idle = _IDLE

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes

    def open(self, name: str) -> None:
        """Let the user log in."""
        Path(f"/proc/{self.nodes.node(name).pid}/root/etc/nologin").unlink(missing_ok=True)

    def release(self, names: Sequence[str]) -> None:
        """End everything on nodes, and bring them up anew for nobody."""
        self._take_down(names)
        self.nodes.reboot(names, _IDLE)

    def deploy(self, names: Sequence[str], environment: str, vlan: str | None) -> None:
        """Bring nodes up from a third partition, perhaps in a VLAN."""
        self._take_down(names)
        home = environment.rpartition("-")[2] in _WITH_HOME
        self.nodes.reboot(
            names,
            Boot(users=home, environment=f"{environment}-{_VERSION}", deployed=True, home=home),
        )
        for name in names:
            if vlan is not None:
                self.nodes.move(name, vlan)

    def fail(self, name: str) -> None:
        """Leave a node down."""
        self.nodes.crash(name)

    def silence(self, name: str) -> None:
        """Cut a node's link."""
        self.nodes.unplug(name)

    def _take_down(self, names: Sequence[str]) -> None:
        for name in names:
            self.nodes.crash(name)
            self.nodes.plug(name)
            self.nodes.move(name, None)
