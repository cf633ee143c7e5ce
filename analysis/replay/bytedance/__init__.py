"""Replay of operations by ByteDance's definitions, for comparison alone."""
