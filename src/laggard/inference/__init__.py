"""Runs of `kind: inference` on the emulated continuum, from their start to their report."""
