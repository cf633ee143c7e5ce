"""Figures of a run, one module each.

Read `registry.py` and `figure_kind.py` first. This folder may import `report/style/`,
`report/timeline/`, `findings/`, `detection/` and `tables/`.
"""
