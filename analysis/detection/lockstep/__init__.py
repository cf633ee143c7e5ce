"""Detectors of causes in runs in lockstep, and their registry."""
