"""Links emulated by one userspace process, for kernels without netem: one TUN device per host,
htb+netem's meaning.

A packet that a host sends to another passes, in this order: independent loss; the sender's uplink;
the pair's own rate; the bottleneck it shares with other pairs; the receiver's downlink (each a
bounded first-in-first-out queue served at its rate); and the delay line. A pair that nothing
constrains passes at once.

    frame.py       what a frame weighs on the wire, and where it goes
    queueing.py    the model: sizes and times in, departure times out; no I/O
    topology.py    a link plan as queues
    tun.py         one TUN device in one namespace
    tally.py       counters and lateness, in memory shared with the caller
    clock.py       a timer with an epoll-able descriptor
    forwarding.py  the loop that moves frames; the emulator process
    backend.py     starts and steers that process
"""

from laggard.network_emulation.links.userspace.backend import UserspaceBackend

__all__ = ["UserspaceBackend"]
