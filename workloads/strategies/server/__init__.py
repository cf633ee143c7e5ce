"""Strategies with a parameter server."""
