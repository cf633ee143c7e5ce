"""Netem backend: links emulated by the kernel's queues, deployed through EnOSlib.

Importing it imports EnOSlib (over a second), so do it only after netem was selected. Read `htb.py`
first (one link in tc's terms), then `tc_commands.py` (a plan as commands) and `backend.py`
(execution and read-back). Modules here import the core, `links/` and the room's root modules.
"""

from laggard.network_emulation.links.netem.backend import NetemBackend
from laggard.network_emulation.links.netem.execute import Execute, InNamespaces

__all__ = ["Execute", "InNamespaces", "NetemBackend"]
