"""Re-simulates an all-reduce run by its own dependency rule: work, barrier, transfer."""
