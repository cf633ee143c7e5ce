"""Drives of hosts: how fast workers read their samples and write their checkpoints, and how long
each access takes.

A drive is a queue in shared memory (`laggard.core.emulated_drive`) in which workers wait by their
own accord, so that it acts on whatever they fetch, be it in the page cache, on a tmpfs or in an
array, and without any right. It acts on nothing else: programs that a user starts in a host see the
machine's own drive. The kernel's throttle of block devices would not hold them: under one of 4
MB/s, a file in the page cache was read at 4.4 GB/s and written at 0.4 GB/s (cgroup v1, Linux 6.18),
and none delays a single access.
"""
