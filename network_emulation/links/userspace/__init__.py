"""Userspace backend: one process emulates all links, for kernels without netem.

Each host has one TUN device, and the constraints mean the same as with HTB and netem. A packet
from one host to another passes, in this order: loss; the sender's uplink; the pair's own rate; the
bottleneck that it shares with other pairs; the receiver's downlink (each a bounded
first-in-first-out queue served at its rate); and the delay line. A packet of an unconstrained pair
passes at once.

    frame.py       size of a frame on the wire, and its destination
    queueing.py    the model: sizes and times in, departure times out; no I/O
    topology.py    a link plan as queues
    tun.py         one TUN device in one namespace
    counters.py    counters and lateness, in memory shared with the caller
    control.py     messages between the emulator and its caller
    forwarding.py  the loop that moves frames; the emulator process
    backend.py     starts and controls that process

Read `queueing.py` first. Modules here import the core, `links/` and the room's root modules.
"""

from laggard.network_emulation.links.userspace.backend import UserspaceBackend

__all__ = ["UserspaceBackend"]
