"""Strategies whose ranks average models with other ranks, without a server.

Read `gossip.py` first. `*_rule.py`, `group_member.py`, `ring_average.py` and `matching_policy.py`
are pure: they compute which messages to send, and the strategies send them. Of the other
strategies, this folder imports only `strategies/base/`.
"""
