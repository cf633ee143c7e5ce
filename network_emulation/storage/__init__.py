"""Drives of hosts: how fast workers read their samples and write their checkpoints, and how long each access takes.

A drive is a queue in shared memory (`laggard.drive`) in which workers wait by their own accord, so that it acts on whatever they
fetch, be it in the page cache, on a tmpfs or in an array, and without any right. It acts on nothing else: programs that a user starts
in a host see the machine's own drive.
"""
