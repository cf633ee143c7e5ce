"""Strategies whose ranks average models with other ranks, without a server."""
