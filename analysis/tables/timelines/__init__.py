"""When each step and phase of each rank ran."""
