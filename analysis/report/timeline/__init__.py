"""The interactive timeline: shares of time in cells."""
