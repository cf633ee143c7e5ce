"""Exports of a run for other tools.

Read `registry.py` first. This folder may import `tables/` and `formats/bytedance/`.
"""
