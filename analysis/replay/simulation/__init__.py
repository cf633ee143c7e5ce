"""Message-by-message simulation of a run's work and links under another strategy.

Read `simulation_input.py` first, then `event_loop.py`. `replay/what_if/` has the strategies that
are simulated with these parts. This folder may import `tables/`, `detection/`,
`replay/link_model.py` and the core.
"""
