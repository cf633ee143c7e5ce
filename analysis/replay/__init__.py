"""Re-simulates a run by its own dependency rule: work, barrier of all or of some, transfer."""
