"""Probes of emulated links: echoes for round trips, a stream for rates, datagrams for losses.

One process holds both ends of every probe: a socket created inside a host's namespace stays there,
wherever its process continues. So nothing has to be started on hosts, and both ends read one
clock. `apart.py` is the exception: its ends are on different machines. Modules here import the
core, the room's root modules and each other.
"""
