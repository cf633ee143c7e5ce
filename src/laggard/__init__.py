"""Laggard trains deep networks across an edge-fog-cloud continuum and names what slows them
down.
"""

__version__ = "0.1.0"
