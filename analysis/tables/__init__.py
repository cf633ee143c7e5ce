"""A run folder's tables as numpy columns."""
