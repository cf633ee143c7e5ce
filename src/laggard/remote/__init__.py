"""Runs on machines that are reached by SSH: Grid'5000 nodes or any others."""
