"""Strategies whose models are exchanged by a background thread.

Read `background_exchange.py` first (the worker and its thread), then `pair_exchange_rule.py` and
`async_averager.py` (pure state machines for pairwise and global averages). `adaptive.py` chooses
between the two by the pure functions of `averaging_choice.py`. Of the other strategies, this
folder imports only `strategies/base/`.
"""
