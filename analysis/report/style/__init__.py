"""Style of figures: colors, labels, canvas.

Read `canvas.py` first. `palette.py` maps each kind of time to a color. This folder may import
`tables/` and the core.
"""
