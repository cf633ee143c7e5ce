"""`laggard verify`: how exactly this machine emulates a continuum, and whether it was quiet."""
