"""Figures of a run, one module each."""
