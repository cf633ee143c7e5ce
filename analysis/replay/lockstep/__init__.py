"""Replay of ranks in lockstep, by max-plus algebra."""
