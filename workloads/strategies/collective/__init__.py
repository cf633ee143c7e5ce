"""Strategies whose ranks take the same steps and use collectives."""
