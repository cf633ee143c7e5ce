"""Flower apps on the emulated continuum: `workload.yaml: {flower: DIR, python: VENV/bin/python}`.

Flower runs in the environment of the app, never in Laggard's: only its output is read.
"""
