"""Drives of hosts: speed and latency of reading samples and writing checkpoints.

A drive is a queue in shared memory (`laggard.core.emulated_drive`) in which workers wait
voluntarily. So it limits everything that they fetch, be it in the page cache, on a tmpfs or in an
array, and needs no rights. It limits nothing else: programs that a user starts in a host use the
machine's own drive.

The kernel's throttle of block devices does not work here: under a throttle of 4 MB/s, a file in
the page cache was read at 4.4 GB/s and written at 0.4 GB/s (cgroup v1, Linux 6.18), and it cannot
delay a single access.

`plan.py` computes the limits, `drives.py` applies them, `measure.py` checks them. They import the
core and `model` and `forked` of this room.
"""
