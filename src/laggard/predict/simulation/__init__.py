"""Simulations of a scenario with up to millions of workers."""
