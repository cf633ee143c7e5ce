"""Trainings in virtual time: rules of strategies, work, and links that messages share.

Read `training.py` first, which says what is simulated, then `strategies.py`, which lists the
strategies. Ranks in lockstep are computed step by step (`lockstep.py`). All other strategies are
played event by event (`event_loop.py`), with messages that share links (`message_flows.py`) and
jobs that share processors (`processor.py`).
"""
