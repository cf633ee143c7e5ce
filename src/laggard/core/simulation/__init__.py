"""Trainings in virtual time: rules of strategies, work, and links that messages share.

Read `training.py` first, which says what is simulated, then `strategies/`. There are three ways to
compute a training. Ranks in lockstep are a recursion over barriers (`maxplus.py`; `fleet.py` for a
million workers). Steps with fixed dependencies are computed for many what-ifs at once
(`step_graph.py`; `group_steps.py` if groups form anew). Everything else is played event by event
(`event_training.py`), with messages that share links (`message_flows.py`) and jobs that share
processors (`processor.py`). `crowd/` has the same rules as arrays, for millions of workers.
"""
