"""Strategies: how the updates of all workers become one model."""
