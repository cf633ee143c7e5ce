"""The netem backend. Importing it imports EnOSlib (over a second): do so only once netem was
chosen.
"""

from laggard.network_emulation.links.netem.backend import NetemBackend
from laggard.network_emulation.links.netem.execute import Execute, InNamespaces

__all__ = ["Execute", "InNamespaces", "NetemBackend"]
