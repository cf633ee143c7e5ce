"""Clocks of several machines: time stamps, bounds of their offsets, and the fit."""
