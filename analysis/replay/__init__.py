"""Replay of a run by the strategy's own dependency rule: work, barrier or pairwise wait, transfer.

A replay answers two questions: how much each cause cost, and how long the run would have taken
with other hardware or another strategy. Read `link_model.py` and `shapley.py` first; every
subfolder uses them. `lockstep/` and `asynchronous/` replay a run by its own strategy,
`simulation/` replays it message by message, `what_if/` has the entry points, and `bytedance/`
computes published metrics for comparison. This folder may import `tables/`, `formats/` and
`detection/` of the analysis, and the core.
"""
