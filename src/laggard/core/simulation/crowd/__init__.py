"""Trainings of up to millions of workers, as arrays over workers instead of events.

`workers.py` has the classes of equal workers; read it first. `server_rounds.py`,
`collective_rounds.py` and `neighbor_rounds.py` have the strategies in lockstep, by the rules of
`core/rules/`. `server_queue.py` has the asynchronous server, worker by worker. For few workers all
of them agree with the simulation event by event (`core/simulation/strategies/`).
"""
