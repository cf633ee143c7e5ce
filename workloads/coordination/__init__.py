"""Coordination outside the emulated network: start barrier, progress board and stopping rules.

Read `start_barrier.py` and `progress_board.py` first (shared memory of one machine), then their
relays, which connect several machines. The package may import the core and the packages below it,
from `specification/` to `balancing/`.
"""
