"""Machines reached over SSH: inventory, processes, file transfer, clock exchange."""
