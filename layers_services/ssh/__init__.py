"""Machines reached over SSH: inventory, processes, file transfer and clock exchange.

Read `inventory.py` first: it assigns the user's machines to hosts. The other modules serve every
remote testbed, Grid'5000 included. This folder imports `compile.py`, `machine.py` and
`machine_description.py` of this room, and `laggard.core`.
"""
