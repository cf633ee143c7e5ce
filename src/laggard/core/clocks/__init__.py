"""Clocks of several machines: time stamps, bounds of their offsets, and the fit.

`timestamps.py` defines one exchange between two machines, `clock_fit.py` turns many exchanges into
a map between the clocks (read its module docstring first), and `offset_bounds.py` is the geometry
beneath it. This package imports `laggard.core` only.
"""
