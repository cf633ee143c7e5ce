"""Replay of a run by the strategy's own dependency rule: work, barrier or pairwise wait, transfer.

A replay answers two questions: how much each cause cost, and how long the run would have taken
with other hardware or another strategy. Read `kept_shares.py`, `fitted_parts.py`,
`link_model.py` and `shapley.py` first; both kinds of run use them. `lockstep/` and
`asynchronous/` measure a run and prepare what `laggard.core.simulation` computes, `what_if/` has
the entry points, and `bytedance/` computes published metrics for comparison. This folder may
import `tables/`, `formats/` and `detection/` of the analysis, and the core.
"""
