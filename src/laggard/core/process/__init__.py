"""Signals of a process, and what it inherits from its parent."""
