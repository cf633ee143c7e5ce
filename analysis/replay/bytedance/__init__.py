"""Replay of operations by ByteDance's definitions, for comparison only.

Read `operation_replay.py` first; `slowdowns.py` computes the published metrics from it. This
folder may import `tables/` and `formats/bytedance/`.
"""
